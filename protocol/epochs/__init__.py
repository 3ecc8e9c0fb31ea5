"""Logical time: epochs of D dimensions, their partial order, and frontiers that pass through them. Pure.

An epoch is a tuple of D integers. One is *at most* another if it is so in each dimension (product order),
so two of them need not be comparable. Two kinds of antichain, sets in which no two epochs are comparable,
say how far time has come, as in Strymon's protocol:

* the *lower frontier*, of minimal elements: an epoch that is not at or above one of them is completed, and no
  message of it comes any more;
* the *upper frontier*, of maximal elements: an epoch at or below one of them may have had messages.

::

            latent --- first message ---> active --- the lower frontier passes it ---> completed
               `------------------------ the lower frontier passes it -----------------^   (skipped)

============== =======================================================================
``order``      one epoch and another; what is acceptable from outside
``antichains`` frontiers as sets: what is open, what is behind, where they go next
``counting``   the lower frontier of a multiset of epochs, and its net changes
``holding``    what one publisher may send at; the frontier that many hold back together
``filtering``  what a subscriber that comes late may see, so that it sees all of an epoch or none
============== =======================================================================

Not promised: that time goes on. Who holds an epoch open holds back everything at or above it.
"""
