"""`distrun ps`, `top` and `stop`: `commands` finds this user's running jobs, shows them and ends them."""
