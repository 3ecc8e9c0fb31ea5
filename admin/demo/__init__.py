"""``streamlease demo``: the main job, end to end, on real flights and under real faults.

`flights` is the input and the truth computed straight from it, `query` one Spark query as its own process,
`judge` the Spark job that looks at what arrived, `processes` starts and kills, `stage` is the play with its
acts, `report` shows it.
"""
