# A private apt, with its own lists, cache and record of installed packages in a folder; the system's apt is not
# touched. To be sourced.

# Prints the Debian mirror: DEBIAN_MIRROR, or else the one in this machine's apt configuration.
debian_mirror() {
    local codename
    if [ -z "${DEBIAN_MIRROR:-}" ]; then
        codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-unstable}")
        DEBIAN_MIRROR=$(apt-get indextargets --no-release-info --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
            awk -v release="^($codename|stable|testing|unstable|sid)\$" '$1 ~ release && $2 == "main" { print $3; exit }')
    fi
    if [ -z "$DEBIAN_MIRROR" ]; then
        echo "apt has no Debian mirror configured here: set DEBIAN_MIRROR=http://HOST/debian in the environment." >&2
        return 1
    fi
    echo "$DEBIAN_MIRROR"
}

# ubuntu_mirror [ARCHITECTURE]: prints UBUNTU_MIRROR, or on Ubuntu this machine's mirror, elsewhere Ubuntu's own. That has
# all architectures except amd64 at another address.
ubuntu_mirror() {
    if [ -z "${UBUNTU_MIRROR:-}" ] && [ "$(. /etc/os-release && echo "${ID:-}")" = ubuntu ]; then
        UBUNTU_MIRROR=$(apt-get indextargets --no-release-info --format '$(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
            awk '$1 == "main" { print $2; exit }')
    fi
    case ${1:-$(dpkg --print-architecture)} in
    amd64) echo "${UBUNTU_MIRROR:-http://archive.ubuntu.com/ubuntu}" ;;
    *) echo "${UBUNTU_MIRROR:-http://ports.ubuntu.com/ubuntu-ports}" ;;
    esac
}

# fetch_ubuntu_keys FOLDER: unpacks Debian's package of Ubuntu's keys into FOLDER, and sets `ubuntu_keys` to the key file.
fetch_ubuntu_keys() {
    local folder=$1
    ubuntu_keys=/usr/share/keyrings/ubuntu-archive-keyring.gpg
    [ ! -e "$ubuntu_keys" ] || return 0
    mkdir -p "$folder"
    own_apt "$folder/apt" "$(debian_mirror) stable" || return 1
    (cd "$folder" && apt-get "${apt[@]}" --quiet=2 download ubuntu-keyring) || return 1
    dpkg --extract "$folder"/ubuntu-keyring_*.deb "$folder"
    ubuntu_keys=$folder$ubuntu_keys
}

# own_apt FOLDER SOURCE [ARCHITECTURE]: sets `apt`, the options for apt-get and apt-cache, and fetches the lists of SOURCE, "MIRROR SUITE...",
# component main or OWN_APT_COMPONENTS. Signatures are checked against Debian's keys, or the file OWN_APT_KEYS. Lists that have
# expired are accepted only with OWN_APT_EXPIRED=1.
own_apt() {
    local folder=$1 mirror suites suite architecture=${3:-$(dpkg --print-architecture)}
    read -r mirror suites <<<"$2"
    [ -n "$suites" ] || return 1
    mkdir -p "$folder"/{lists,archives}/partial
    : >"$folder/status"
    for suite in $suites; do
        echo "deb [signed-by=${OWN_APT_KEYS:-/usr/share/keyrings/debian-archive-keyring.gpg}] $mirror $suite ${OWN_APT_COMPONENTS:-main}"
    done >"$folder/sources.list"
    apt=(
        -o "Dir::State=$folder" -o "Dir::State::status=$folder/status" -o "Dir::State::lists=$folder/lists"
        -o "Dir::Cache=$folder" -o "Dir::Cache::archives=$folder/archives"
        -o "Dir::Etc::sourcelist=$folder/sources.list" -o Dir::Etc::sourceparts=/dev/null
        -o Dir::Etc::preferences=/dev/null -o Dir::Etc::preferencesparts=/dev/null
        -o "APT::Architecture=$architecture" -o "APT::Architectures=$architecture"
        -o "APT::Sandbox::User=$(id -un)" -o Acquire::Languages=none
    )
    [ -z "${OWN_APT_EXPIRED:-}" ] || apt+=(-o Acquire::Check-Valid-Until=false)
    apt_folder=$folder
    apt-get "${apt[@]}" --quiet=2 update
}

# unpack_packages FOLDER PACKAGE...: unpacks packages and their dependencies so that a chroot finds linker and shell.
unpack_packages() {
    local folder=$1 package directory
    shift
    apt-get "${apt[@]}" --quiet=2 --yes --download-only --no-install-recommends install "$@" </dev/null || return 1
    for package in "$apt_folder"/archives/*.deb; do
        dpkg --extract "$package" "$folder" || return 1
    done
    for directory in bin sbin lib lib64; do
        [ ! -d "$folder/usr/$directory" ] || [ -d "$folder/$directory" ] || ln -sfn "usr/$directory" "$folder/$directory"
    done
}
