"""The model of a running job, of which the live view and the report are views. Pure.

`model` takes what agents tell and keeps the present of each rank. `accounts` keeps what each rank does in time, and
`seconds` divides each second of it: computing, waiting for input, waiting for another rank, moving data. `stragglers`
decides whom the others wait for, and why, and `output` what a rank's output says about its progress.
"""
