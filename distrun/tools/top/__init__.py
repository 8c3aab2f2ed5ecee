"""`distrun top` and `distrun ps`: `commands` finds this user's running jobs and shows them."""
