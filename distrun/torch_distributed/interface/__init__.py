"""The other interfaces of a process group to torch: overloads, operators, functions, works for C++."""
