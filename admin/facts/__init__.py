"""What is known about spaces, groups and hosts: typed rows, and how they are read.

A row is a pydantic model, and the only form that a fact takes on its way: readers build rows, and tables, the
page, ``--json`` and the JSON Schemas are made from them. Here nothing is drawn; the commands do that.
"""
