"""`distrun top` and `distrun ps`: `finding` finds this user's running jobs, `commands` shows them."""
