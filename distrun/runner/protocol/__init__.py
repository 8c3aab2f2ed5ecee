"""The messages that launcher and agent exchange, without the logic of who sends which of them when.

`frames` is the envelope: a kind, the number of a process and some bytes, on the stdin and stdout of the agent.
`handshake` holds the first frames between the launcher and an agent on another host, and checks that the two are
compatible. `sealed_frames` encrypts the frames to an agent where others can read the connection, as they can srun's.
`keepalive` notices a dead connection, and `exits` is the end of a rank as it travels from agent to launcher.
`json_payload` is the base of payloads in JSON. Everything above (agents, `hosts`, `decisions`) uses these messages.
Nothing here reads or writes a descriptor.
"""
