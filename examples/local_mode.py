"""Train on the demo's data in the image with the SageMaker SDK's local mode, on one or two hosts on this machine.

    pip install -c constraints.txt '.[aws]'            # or make setup
    python examples/local_mode.py --image text-table-trainer --work /tmp/local-mode --instances 2

You need Docker and Docker Compose, but no AWS account. WORK/compressed_artifacts gets
model.tar.gz and output.tar.gz, which a job on SageMaker writes to S3.
"""

import argparse
import json
import os
from pathlib import Path
from typing import Any

# Local mode makes no AWS calls, but by default the SDK looks for a region and checks roles.
os.environ.setdefault("SAGEMAKER_VALIDATE_ROLE", "false")
os.environ.setdefault("AWS_DEFAULT_REGION", "us-east-1")

import boto3
from sagemaker.core.helper.session_helper import Session
from sagemaker.core.shapes import OutputDataConfig
from sagemaker.core.training.configs import Compute, InputData
from sagemaker.train import ModelTrainer
from sagemaker.train.model_trainer import Mode

CHANNELS = ("train", "val", "test")


def main() -> None:
    """Run one local training job."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--image", default="text-table-trainer")
    parser.add_argument("--work", type=Path, required=True, help="folder for the job; created if it does not exist")
    parser.add_argument("--data", type=Path, help="folder with train/, val/, test/ (default: demo data)")
    parser.add_argument("--instances", type=int, default=1)
    parser.add_argument("--hyperparameters", type=Path, help="JSON file (default: the demo's)")
    options = parser.parse_args()
    work = options.work.absolute()
    work.mkdir(parents=True, exist_ok=True)
    data = options.data or demo_data(work / "demo")
    hyperparameters = json.loads(options.hyperparameters.read_text()) if options.hyperparameters else demo_settings()
    train(image=options.image, work=work, data=data, hyperparameters=hyperparameters, instances=options.instances)


def train(*, image: str, work: Path, data: Path, hyperparameters: dict[str, Any], instances: int) -> None:
    """A ModelTrainer job in local containers.

    Args:
        work: where the SDK keeps the job's folders and leaves the artifacts.
        data: a folder for each channel.
    """
    boto = boto3.Session(
        aws_access_key_id="local", aws_secret_access_key="local", region_name=os.environ["AWS_DEFAULT_REGION"]
    )
    trainer = ModelTrainer(
        training_mode=Mode.LOCAL_CONTAINER,
        # A bucket is named so that the SDK does not ask AWS for the account's; nothing is put into it.
        sagemaker_session=Session(boto_session=boto, default_bucket="unused"),
        role="arn:aws:iam::123456789012:role/unused",
        training_image=image,
        base_job_name="text-table",
        compute=Compute(instance_type="local_cpu", instance_count=instances),
        hyperparameters=hyperparameters,
        input_data_config=[
            InputData(channel_name=name, data_source=str((data / name).absolute())) for name in CHANNELS
        ],
        output_data_config=OutputDataConfig(s3_output_path="s3://unused/output"),
        local_container_root=str(work),
    )
    trainer.train(wait=True)


def demo_data(folder: Path) -> Path:
    """The demo's tables; returns the folder of the channels."""
    from container.demo_data import write_demo_data

    write_demo_data(folder, rows=1500, seed=7)
    return folder / "input" / "data"


def demo_settings() -> dict[str, Any]:
    """The demo's configuration, for one epoch on one process of each host."""
    from container.demo import CONFIGURATION

    return {**CONFIGURATION, "max_epochs": 1, "nproc_per_node": 1}


if __name__ == "__main__":
    main()
