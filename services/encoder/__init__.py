"""The encoder fleet: pictures to embeddings, on Ray Serve behind an own gRPC front.

The front is the gRPC server that is in the registry; a replica is a process of Ray Serve that holds the vision tower.

Ray and gRPC read these variables when they are first imported, so they are set before anything else of this package.
"""

import os

for _name, _value in {
    # No process of ours reports to a third party.
    "RAY_USAGE_STATS_ENABLED": "0",
    # A replica without a GPU share keeps what the environment says about devices.
    "RAY_ACCEL_ENV_VAR_OVERRIDE_ON_ZERO": "0",
    # Seconds between two reports of pending tokens to the autoscaler, which acts after `upscale_delay_s`.
    "RAY_SERVE_REPLICA_AUTOSCALING_METRIC_PUSH_INTERVAL_S": "1.0",
    # Ray starts processes while our server listens; they never use its connections.
    "GRPC_ENABLE_FORK_SUPPORT": "0",
}.items():
    os.environ.setdefault(_name, _value)
