"""Jobs with a launcher on every host, as torchrun's: the launchers meet, and each starts its own ranks.

`options` reads the command line. `rendezvous` lets the launchers meet as `joining` lets hosts join: the launcher at the
endpoint listens, and the others call it. When all have joined, each gets an `Assembly` (`messages`) with the addresses
of all hosts, plans the whole job by itself, and executes its own part (`launch`). While the job runs, the launchers are
`peers`: an event on one host is sent to all, so each decides by the same rules as for a job of its own. Nothing is
pickled, and the job key never travels.
"""
