import cupy, numpy as np, distrun, os, sys
distrun.init(); r=distrun.rank(); cupy.cuda.Device(distrun.local_rank()).use()
st = cupy.cuda.Stream(non_blocking=True); st.use()
x = cupy.asarray(np.full(10, r+1, np.float32))
distrun.allreduce(x, name="a")
y = distrun.allreduce(x, name="last")
print("saved", y.get()[:2], flush=True)
if "shut" in sys.argv: distrun.shutdown()
