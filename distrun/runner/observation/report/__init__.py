"""The report of a job: one self-contained HTML page that shows where its time went.

`consumer` collects data while the job runs, by `collector`, and writes the page at its end. `summary` has the data of
the page, `findings` puts the main ones into sentences, and `page` renders it with `plots`, `svg` and `style`. `scaling`
predicts the speed on more hosts.
"""
