"""Submission, inspection and end of jobs from outside the cluster: Ray's names, over the cluster's HTTP interface.

An entrypoint is a shell command line that runs on a node of the cluster; ``shoal.init()`` in it joins the cluster as that job.
"""

from shoal.job_submission._client import JobSubmissionClient
from shoal.job_submission._details import DriverInfo, JobDetails, JobErrorType, JobInfo, JobStatus, JobType

__all__ = ["DriverInfo", "JobDetails", "JobErrorType", "JobInfo", "JobStatus", "JobSubmissionClient", "JobType"]
