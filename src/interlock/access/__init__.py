"""Access to a server: tokens, allowed hosts and origins, the limit on wrong tokens, and the audit."""
