"""Who leads what, who is where, and how to reach them.

`keys` names every key of groups and hosts, `groups` declares shared subscriptions, `leadership` elects
leaders by atomic preconditions, `hosts` knows the leader hosts, `spawn` finds a leader or has one spawned,
`mailbox` carries control messages. This room knows nothing of assignment.
"""
