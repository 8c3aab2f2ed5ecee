"""Only joins the job."""

import distrun

distrun.init()
