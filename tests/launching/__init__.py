r"""How a test starts what it tests: clusters, drivers, hosts and ranks. Each module imports only what it needs.

A cluster with this process as its driver (``fixtures``; a folder's conftest.py imports the fixtures that its tests use)::

    pytestmark = pytest.mark.usefixtures("module_cluster")

    def test_an_actor_answers(log):  # an actor of ``actors``, whose classes the tests share
        shoal.get(log.add.remote(1))
        assert shoal.get(log.all.remote()) == [1]

The ``shoal`` command, clusters that it starts, and drivers in processes of their own (``commands``)::

    def test_a_job_outlives_its_head(shoal_command):  # has a SHOAL_HOME; what the test leaves behind is an error (``leftovers``)
        cluster = shoal_command.start(cpus=4)
        driver = shoal_command.driver("import shoal\nshoal.init('auto')\nprint('it runs')\ninput()")
        driver.said("it runs")
        cluster.kill_head()

Hosts, which are network namespaces with cables between them (``hosts``), and a cluster of two nodes (``two_nodes``)::

    for hosts in two_hosts():  # in a fixture
        cluster_of(hosts)
        print(drive(hosts.a, "shoal.init('auto')\nprint(shoal.get(on('b').node.remote()))"))
        hosts.set_rate(1.0)  # Gbit/s
        hosts.pull_cable()

Ranks of a script (``ranks``): forked from a process that has imported torch once, or new interpreters::

    with ForkedRanks("shoal.fsdp", OMP_NUM_THREADS="1") as forked:  # in a fixture of the module
        said = forked.output([script, "--steps", 3], ranks=2)  # it has to succeed
        assert forked.run([script, "--fail"], ranks=2).returncode == 1
    pretended = forked.run([script], ranks=3)  # on two hosts, if the script sets SHOAL_HOST by RANK before it imports shoal
    under_torchrun = fresh([script], ranks=2)
    codes = [r.returncode for r in fresh_ranks([script], 2)]  # without a launcher

Ranks of a ``Trainer``, which run many functions in one run on the program's cluster (``trained``)::

    use = Uses()

    @use
    def a_scalar_is_sharded(): ...  # on every rank; beneath: failed = ranks(all_uses, 2), where all_uses() is run(use)

    test_use = pytest.mark.parametrize("name", use)(lambda name, failed: check(name, failed))

``filled`` makes a cluster with 20,000 actors. ``etcd`` starts an etcd, ``slurm`` a Slurm, ``sshd`` an sshd on each host. ``pods`` plays
pods of Kubernetes. ``warm`` lets the interpreter from which workers are forked import a test's modules once.
"""
