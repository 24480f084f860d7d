#!/usr/bin/env bash
# Licences, a bill of materials and known vulnerabilities of what is installed in .venv, torch included, in outputs/audit;
# in outputs/audit/gpu licences and vulnerabilities of the extra gpu, as it would be installed today. `make audit` calls this.
set -euo pipefail
cd "$(dirname "$0")/.."
tools=.venv-audit/bin output=outputs/audit status=0

# Asks PyPI about every version. An index without that service answers nothing, which is no clean bill.
look_up() {
    local found=0 unknown
    $tools/pip-audit --disable-pip --no-deps -r "$1/packages.txt" --format json --output "$1/vulnerabilities.json" 2>/dev/null || found=$?
    unknown=$({ grep -o '"skip_reason"' "$1/vulnerabilities.json" || true; } | wc -l) # without one grep fails
    echo "audit: known vulnerabilities in $1/vulnerabilities.json (pip-audit's status: $found); $unknown of $(wc -l <"$1/packages.txt") packages could not be looked up"
    ((found == 0)) || status=$found
}

[ -x $tools/pip-audit ] || .venv/bin/python -m venv .venv-audit
$tools/python -m pip install --quiet --disable-pip-version-check --require-hashes --no-deps -r requirements/audit.lock
mkdir -p $output/gpu
$tools/pip-licenses --python=.venv/bin/python --from=mixed --order=license --format=json --output-file=$output/licences.json >/dev/null
$tools/cyclonedx-py environment --output-file $output/sbom.json .venv/bin/python
echo "audit: $(grep -c '"Name"' $output/licences.json) licences in $output/licences.json, bill of materials in $output/sbom.json"
.venv/bin/python requirements/audited.py $output
look_up $output

# Nothing of it is downloaded but metadata, and a few sources that state theirs only when built.
.venv/bin/python -m pip install --quiet --disable-pip-version-check --dry-run --ignore-installed --no-build-isolation --report $output/gpu/report.json ".[gpu]"
.venv/bin/python requirements/audited.py $output/gpu $output/gpu/report.json
echo "audit: extra gpu: $(grep -c '"Name"' $output/gpu/licences.json) licences in $output/gpu/licences.json, $(grep -c '"UNKNOWN"' $output/gpu/licences.json || true) of them not stated"
look_up $output/gpu
exit $status
