# To be sourced. An apt of its own, with lists, cache and a record of installed packages in a folder: this system's apt is not touched.

# The mirror of Debian that this machine's apt is set up for, or DEBIAN_MIRROR.
debian_mirror() {
    local codename
    if [ -z "${DEBIAN_MIRROR:-}" ]; then
        codename=$(. /etc/os-release && echo "${VERSION_CODENAME:-unstable}")
        DEBIAN_MIRROR=$(apt-get indextargets --no-release-info --format '$(RELEASE) $(COMPONENT) $(REPO_URI)' 'Created-By: Packages' |
            awk -v release="^($codename|stable|testing|unstable|sid)\$" '$1 ~ release && $2 == "main" { print $3; exit }')
    fi
    if [ -z "$DEBIAN_MIRROR" ]; then
        echo "apt knows no Debian mirror here: DEBIAN_MIRROR=http://HOST/debian in the environment names one." >&2
        return 1
    fi
    echo "$DEBIAN_MIRROR"
}

# ubuntu_mirror [ARCHITECTURE]: UBUNTU_MIRROR, or on Ubuntu that of this machine's apt, elsewhere Ubuntu's own, which has
# all but amd64 at another place.
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

# fetch_ubuntu_keys FOLDER: sets `ubuntu_keys`, the file of Ubuntu's keys, which Debian has in a package: that is unpacked into FOLDER.
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
# of the component main, or of those of OWN_APT_COMPONENTS. Signed by Debian, or by the keys in the file OWN_APT_KEYS. Lists that have
# expired count only with OWN_APT_EXPIRED=1.
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

# unpack_packages FOLDER PACKAGE...: these and all they depend on, unpacked, so that a chroot finds linker and shell at their old places.
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
