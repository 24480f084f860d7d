#!/usr/bin/env bash
# What is installed in .venv: licences, a bill of materials and known vulnerabilities, in outputs/audit. `make audit` calls this.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=.venv-audit/bin output=outputs/audit

[ -x $tools/pip-audit ] || .venv/bin/python -m venv .venv-audit
$tools/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/audit.lock
mkdir -p $output
$tools/pip-licenses --python=.venv/bin/python --from=mixed --order=license --format=json --output-file=$output/licences.json >/dev/null
$tools/cyclonedx-py environment --output-file $output/sbom.json .venv/bin/python
echo "audit: $(grep -c '"Name"' $output/licences.json) licences in $output/licences.json, bill of materials in $output/sbom.json"
# Asks PyPI about every version. An index without that service answers nothing, which is no clean bill.
status=0
$tools/pip-audit --disable-pip --require-hashes -r requirements/cpu.lock --format json --output $output/vulnerabilities.json 2>/dev/null || status=$?
unknown=$(grep -o '"skip_reason"' $output/vulnerabilities.json | wc -l)
echo "audit: known vulnerabilities in $output/vulnerabilities.json (pip-audit's status: $status); $unknown packages could not be looked up"
exit $status
