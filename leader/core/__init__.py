"""The leader machine: its tables, its parts, its plans. Pure (EIP-0028, "Leader's logic")."""
