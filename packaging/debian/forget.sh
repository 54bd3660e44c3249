# SPDX-License-Identifier: Apache-2.0
# Part of both packages' prerm, see rules. Takes the library out of /etc/ld.so.preload before a
# package is removed: the library does nothing without the daemon, the daemon's package has the
# command that would take it out, and a line that leads nowhere makes every program of the machine
# complain when it starts. If the line cannot be taken out, the package stays.
OURS=/usr/lib/#DEB_HOST_MULTIARCH#/libnvshare.so
LINK=/usr/lib/nvshared/nvshared/lib/libnvshare.so
LIST=/etc/ld.so.preload

# Entries are parted by blanks and colons; what follows a # is a comment. Ours may be
# written in several ways; a libnvshare.so in another place is somebody else's.
forget() {
    real=$(readlink -f "$LIST")
    # Under another name first, and then in place of the old list, all at once: at
    # every moment there is a whole one, for everything that starts.
    new=$(mktemp "$real.XXXXXX")
    awk -v ours="$OURS" -v link="$LINK" -v triplet=#DEB_HOST_MULTIARCH# '
        function is_ours(entry) {
            gsub(/\$(LIB|\{LIB\})/, "lib/" triplet, entry)
            sub(/^\/lib\//, "/usr/lib/", entry)
            return entry == ours || entry == link || entry == "libnvshare.so"
        }
        {
            comment = match($0, /#/) ? substr($0, RSTART) : ""
            entries = comment == "" ? $0 : substr($0, 1, RSTART - 1)
            count = split(entries, entry, /[ \t:]+/)
            kept = ""; found = 0
            for (i = 1; i <= count; i++) {
                if (entry[i] == "") continue
                if (is_ours(entry[i])) { found = 1; continue }
                kept = kept (kept == "" ? "" : " ") entry[i]
            }
            if (!found) { print; next }
            if (kept != "" && comment != "") kept = kept " "
            if (kept comment != "") print kept comment
        }
    ' "$real" >"$new" || { rm -f "$new"; return 1; }
    chmod --reference="$real" "$new"
    chown --reference="$real" "$new"
    if [ -s "$new" ]; then
        mv "$new" "$real"
    else
        rm "$real" "$new"
    fi
}

if [ "$1" = remove ] && [ -e "$LIST" ] && grep -q libnvshare "$LIST"; then
    forget
fi
