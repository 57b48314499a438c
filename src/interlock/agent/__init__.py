"""What an agent touches: its run and the verbs of it, tools, processes, and the leash that its code runs on."""
