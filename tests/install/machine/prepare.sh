# In the machine's disk, before it runs: what a site has before Gleaner comes, and the packages: prepare.sh WAY
way=$1
echo machine >/etc/hostname
printf '127.0.0.1 localhost\n10.99.0.1 machine\n' >/etc/hosts
# Slurm resolves no name on a machine that has only the loopback address.
printf '[NetDev]\nName=lan0\nKind=dummy\n' >/etc/systemd/network/lan0.netdev
printf '[Match]\nName=lan0\n[Network]\nAddress=10.99.0.1/24\n' >/etc/systemd/network/lan0.network
systemctl enable systemd-networkd
echo "/dev/vda / ext4 defaults 0 1" >/etc/fstab
echo "$way" >/srv/install/way
useradd -m -s /bin/bash alice
install -d -o slurm -g slurm -m 0755 /etc/slurm /var/lib/slurm/slurmctld /var/lib/slurm/slurmd /var/log/slurm
cat >/etc/slurm/slurm.conf <<'EOF'
ClusterName=one
SlurmctldHost=machine
SlurmUser=slurm
SlurmctldLogFile=/var/log/slurm/slurmctld.log
SlurmdLogFile=/var/log/slurm/slurmd.log
StateSaveLocation=/var/lib/slurm/slurmctld
SlurmdSpoolDir=/var/lib/slurm/slurmd
ProctrackType=proctrack/cgroup
TaskPlugin=task/cgroup
SlurmctldTimeout=300
SlurmdTimeout=300
ReturnToService=2
AccountingStorageType=accounting_storage/slurmdbd
NodeName=machine CPUs=2 RealMemory=2500
PartitionName=regular Nodes=ALL Default=YES State=UP
EOF
cat >/etc/slurm/cgroup.conf <<'EOF'
CgroupPlugin=cgroup/v2
ConstrainCores=yes
ConstrainRAMSpace=yes
EOF
cat >/etc/slurm/slurmdbd.conf <<'EOF'
DbdHost=machine
SlurmUser=slurm
LogFile=/var/log/slurm/slurmdbd.log
PidFile=/run/slurm/slurmdbd.pid
StorageType=accounting_storage/mysql
StorageUser=slurm
StorageLoc=slurm_acct_db
EOF
chown slurm:slurm /etc/slurm/slurmdbd.conf
chmod 600 /etc/slurm/slurmdbd.conf
# A controller that starts before slurmdbd answers takes up its jobs without their accounts. Slurm 24.11 then ends ("fatal:
# assoc_mgr_lock") when one of them does. Debian's units know no order.
install -d /etc/systemd/system/slurmctld.service.d
cat >/etc/systemd/system/slurmctld.service.d/order.conf <<'EOF'
[Unit]
After=slurmdbd.service

[Service]
ExecStartPre=/bin/sh -c 'until sacctmgr --noheader show cluster; do sleep 1; done'
TimeoutStartSec=300
EOF
dpkg -i /srv/install/packages/*.deb
cat >/etc/systemd/system/transcript.service <<'EOF'
[Unit]
Description=The transcript of an installation
After=multi-user.target munge.service mariadb.service

[Service]
Type=oneshot
User=root
Environment=LC_ALL=C.UTF-8 COLUMNS=150
ExecStart=/bin/bash /srv/install/machine/transcript.sh
StandardOutput=journal+console
StandardError=journal+console
SyslogIdentifier=TRANSCRIPT
TimeoutStartSec=infinity

[Install]
WantedBy=graphical.target
EOF
mkdir -p /etc/systemd/system/graphical.target.wants
ln -sf /etc/systemd/system/transcript.service /etc/systemd/system/graphical.target.wants/transcript.service
systemctl set-default graphical.target
systemctl disable slurmctld slurmd slurmdbd 2>/dev/null || true
