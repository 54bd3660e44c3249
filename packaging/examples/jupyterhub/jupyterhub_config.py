# SPDX-License-Identifier: Apache-2.0
# /etc/jupyterhub/jupyterhub_config.py: notebooks that share the GPU. See docs/lab-server.md.
c = get_config()  # noqa: F821

# From elsewhere: ssh -L 8000:localhost:8000 gpuhost. For all the world, put a server with a
# certificate in front: https://jupyterhub.readthedocs.io/en/stable/howto/configuration
c.JupyterHub.bind_url = "http://127.0.0.1:8000"

# Users of this machine log in with their password.
c.JupyterHub.authenticator_class = "pam"
c.Authenticator.allow_all = True
c.Authenticator.admin_users = {"root"}

# Each user's server is a unit of systemd, jupyter-alice.service, which has terms of its own beside
# its user's. With "localprocess" in place of "systemd" it is a process, which has its user's.
c.JupyterHub.spawner_class = "systemd"
c.SystemdSpawner.unit_name_template = "jupyter-{USERNAME}"

# Its notebooks and terminals share the GPU, give back caches of PyTorch and CuPy, and say
# when they wait for the GPU: beneath the cell that waits.
c.Spawner.cmd = ["/usr/bin/nvsharectl", "run", "--", "/opt/jupyterhub/bin/jupyterhub-singleuser"]
c.Spawner.environment = {"NVSHARE_TRIM_CACHES": "1", "NVSHARE_VERBOSE": "1"}

# Ten that start at once, as after a power cut, take longer than the usual 30 seconds.
c.Spawner.start_timeout = c.Spawner.http_timeout = 180

# They go on while the hub is restarted.
c.JupyterHub.cleanup_servers = False
