"""The hypha daemon: gateway, scheduler, worker and data node."""
