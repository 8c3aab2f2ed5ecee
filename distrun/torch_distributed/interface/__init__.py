"""The rest of what torch calls of a process group: overloads, operators, functions, works for C++."""
