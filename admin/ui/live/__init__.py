"""What is new, for every browser: one channel for each tab, whose keys are states of the console's board."""
