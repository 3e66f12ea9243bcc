"""What `hypha-node` does beside running a node: each module is loaded when its command is called."""
