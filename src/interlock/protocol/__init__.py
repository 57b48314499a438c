"""The words on the wire: the frames of the gateway, its methods, and a run's timeline as a picture. No I/O."""
