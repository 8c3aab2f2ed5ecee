"""The report of a job: one page of HTML that shows where its time went, and opens wherever it is sent.

`consumer` gathers while the job runs and writes at its end; `summary` is what it has found, `findings` says it in
sentences, and `page` draws it with `plots` and `style`. `facts` are the hosts, settings and versions.
"""
