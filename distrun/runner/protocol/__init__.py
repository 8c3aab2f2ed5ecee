"""The words that launcher and agent exchange, and nothing about who says them when.

`frames` is the envelope: a kind, a rank and some bytes, on the stdin and stdout of a program of ours. `handshake` holds
the first frames between the launcher and a program on another host, and the judgement whether the two fit together.
`sealed_frames` keeps what the agent is sent from others who can read the line, as they can srun's. `keepalive` notices
a connection that was cut without a word, and `exits` is the end of a rank as it travels from agent to launcher.
Everything above (agents, `hosts`, `decisions`) speaks these words; nothing here reads or writes a descriptor.
"""
