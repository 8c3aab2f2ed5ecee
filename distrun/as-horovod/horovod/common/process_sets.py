"""Process sets."""

from distrun.runtime.process_set import ProcessSet as ProcessSet, global_process_set as global_process_set
