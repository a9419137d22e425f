-- A Wireshark dissector for dafs over TCP.
--
-- It names every field of the transport and of its messages, puts frames together that TCP has cut, and finds the
-- request of each reply. One file; copy it to Wireshark's folder of personal Lua plugins (Help, About, Folders), as
--
--     mkdir -p ~/.local/lib/wireshark/plugins && dafs dissector > ~/.local/lib/wireshark/plugins/dafs.lua
--
-- or name it on the command line: tshark -X lua_script:dafs.lua -r capture.pcap
--
-- Port 12049 is taken for dafs (a preference). On other ports a connection is recognized by the hello of the transport,
-- or, where the capture begins later, by a segment that begins with a message.
--
-- The tables below are made of the pages of the specification. What tables cannot say stands behind them, in this
-- order: fields, numbers as text, cursors, layouts, MessagePack, payloads, checks, messages, frames, streams.

-- Begin of the tables, which `cargo xtask dissector` makes of the pages in spec/. Do not edit them.
local SPEC = {
    features = {
        { 0x01, "CHAINS", about = "a client may chain requests (session.md)" },
        { 0x02, "CALLBACKS", about = "the server sends callbacks" },
        { 0x04, "RESUME", about = "a client may resume its session (session.md)" },
        { 0x08, "EAGER_BUFFERS", about = "a client may ask for eager buffers" },
        { 0x10, "LISTS", about = "a client may send ReadList and WriteList; Welcome has the field gather" },
        { 0x20, "BATCHES", about = "a client may send Batch (batch.md)" },
        { 0x40, "TOKENS", about = "a client may send Share and OpenToken (files.md)" },
        { 0x80, "LOCKS", about = "a client may send Lock, Unlock and LockTest (locks.md)" },
        { 0x100, "VIEWS", about = "a client may send ViewSet, ViewDrop, ReadView and WriteView (views.md)" },
        {
            0x200,
            "EXPLAIN",
            about = "a client may set EXPLAIN in ReadList, WriteList, ReadView and WriteView (lists.md)",
        },
        { 0x400, "LOCAL_FILES", about = "a client may send HandOver; the server may send Recall (local.md)" },
        { 0x800, "CLUSTER", about = "Welcome may have the field cluster, if LISTS holds too (cluster.md)" },
    },
    methods = { [0] = "inline", [1] = "direct", [2] = "eager", [3] = "client-initiated" },
    stabilities = { [0] = "unstable", [1] = "data-sync", [2] = "file-sync" },
    statuses = {
        [0] = { "OK", "done" },
        [1] = { "PERMISSION", "operation not permitted" },
        [2] = { "NOT_FOUND", "no such file or directory" },
        [5] = { "IO", "input/output error" },
        [6] = { "NO_DEVICE", "there is no data or hole at or after that offset, or no such device" },
        [9] = { "BAD_HANDLE", "the handle is not open in this session, or not for this use" },
        [11] = { "AGAIN", "resource temporarily unavailable" },
        [12] = { "NO_MEMORY", "cannot allocate memory" },
        [13] = { "ACCESS", "permission denied" },
        [16] = { "BUSY", "device or resource busy" },
        [17] = { "EXISTS", "file exists" },
        [18] = {
            "CROSS_DEVICE",
            "invalid cross-device link: the path leaves the export, or the two names are on different " ..
                "file systems",
        },
        [20] = { "NOT_DIRECTORY", "not a directory" },
        [21] = { "IS_DIRECTORY", "is a directory" },
        [22] = { "INVALID", "invalid argument" },
        [24] = { "TOO_MANY_OPEN", "too many open files" },
        [26] = { "FILE_BUSY", "text file busy" },
        [27] = { "TOO_LARGE", "file too large" },
        [28] = { "NO_SPACE", "no space left on device" },
        [30] = { "READ_ONLY", "read-only file system" },
        [31] = { "TOO_MANY_LINKS", "too many links" },
        [34] = { "RANGE", "the result does not fit the room given" },
        [35] = { "DEADLOCK", "resource deadlock avoided: who holds the lock waits for this owner" },
        [36] = { "NAME_TOO_LONG", "file name too long" },
        [37] = {
            "TOO_MANY_LOCKS",
            "no locks available: this session or all together hold as many as they may",
        },
        [39] = { "NOT_EMPTY", "directory not empty" },
        [40] = { "LOOP", "too many levels of symbolic links, or one where none is followed" },
        [61] = { "NO_DATA", "no such extended attribute" },
        [95] = { "NOT_SUPPORTED", "operation not supported" },
        [110] = { "TIMED_OUT", "the deadline passed before the operation began" },
        [116] = { "STALE", "stale file handle" },
        [122] = { "QUOTA", "disk quota exceeded" },
        [125] = { "CANCELLED", "reserved: operation canceled" },
        [4097] = { "CHAIN_ABORTED", "an earlier request of the chain failed" },
        [4098] = { "FENCED", "this client is fenced off the export" },
        [4099] = { "NO_EXPORT", "no such export, or this client may not mount it" },
        [4100] = { "FALSE_RETRY", "the sequence number of the slot was used before for another request" },
        [4101] = { "NO_SESSION", "reserved: the server does not know the session" },
        [4102] = { "AUTH_FAILED", "the key is unknown or the proof is wrong" },
        [4103] = { "AUTH_REQUIRED", "this listener demands a key" },
        [4104] = { "VERSION", "no protocol version is spoken by both sides" },
        [4105] = { "SERVER_FULL", "the server has as many sessions as it may have" },
        [4106] = { "DRAINING", "the server is shutting down" },
        [4107] = { "REMOTE_ACCESS", "the client's memory could not be reached" },
        [4108] = { "NO_TOKEN", "the token is unknown, its time is over, or it is not for this client" },
        [4112] = { "LOCKED", "another owner holds a lock of a part of this range" },
        [4113] = { "WAITING", "the lock waits for others; the server tells when to ask again" },
        [4114] = {
            "LOCK_BROKEN",
            "a part of this range was locked by somebody who is gone: repair what it guards",
        },
        [4115] = { "GRACE", "the server was restarted, and waits for its clients to reclaim their locks" },
        [4116] = {
            "NO_RECLAIM",
            "the lock is not its client's any more: the server does not know it, or others could lock " ..
                "meanwhile",
        },
        [4128] = { "NOT_SAME", "the attributes or the list are not those that were expected" },
        [4129] = { "SAME", "none of the attributes that were compared differs" },
        [4130] = {
            "SHARE_DENIED",
            "another open of the file denies this access, or has an access that this one denies",
        },
        [4144] = { "NO_VIEW", "the session has no view of this number" },
        [4145] = {
            "TOO_MANY_VIEWS",
            "the server has no room for another view of this session, or of all sessions of its client",
        },
    },
    opcodes = {
        [0x0000] = { "Null", request = {}, reply = {} },
        [0x0001] = { "Hello", request = { payload = "Hello" }, reply = { payload = "HelloReply" } },
        [0x0002] = {
            "Authenticate",
            request = { payload = "Authenticate" },
            reply = { payload = "AuthenticateReply" },
        },
        [0x0003] = { "Bye", request = {}, reply = {} },
        [0x0004] = { "Limits", request = {}, reply = { payload = "LimitsReply" } },
        [0x0005] = { "Statistics", request = {}, reply = { payload = "Statistics" } },
        [0x0006] = { "Exports", request = {}, reply = { payload = "Names of exports" } },
        [0x0007] = {
            "EagerBuffers",
            request = { body = "eager buffer terms", payload = "ranges" },
            reply = { body = "eager buffer terms", payload = "ranges" },
        },
        [0x0008] = { "Publish", request = { payload = "Crossovers" }, reply = {} },
        [0x0010] = { "Mount", request = { payload = "export name" }, reply = { payload = "MountReply" } },
        [0x0011] = {
            "Lookup",
            request = { body = "name request", payload = "path" },
            reply = { payload = "Attributes" },
        },
        [0x0012] = {
            "Open",
            request = { body = "open request", payload = "path" },
            reply = { payload = "Attributes" },
        },
        [0x0013] = { "Close", request = {}, reply = {} },
        [0x0014] = {
            "Getattr",
            request = { body = "name request", payload = "path" },
            reply = { payload = "Attributes" },
        },
        [0x0015] = {
            "Setattr",
            request = { body = "name request", payload = "path and attributes" },
            reply = { payload = "Attributes" },
        },
        [0x0016] = {
            "Share",
            request = { body = "share request" },
            reply = { body = "share reply", payload = "token" },
        },
        [0x0017] = { "OpenToken", request = { payload = "token" }, reply = { payload = "Attributes" } },
        [0x0018] = { "HandOver", request = {}, reply = {} },
        [0x0020] = {
            "Read",
            request = { body = "read request", payload = "ranges when more than one" },
            reply = { body = "read reply", payload = "data when inline" },
        },
        [0x0021] = {
            "Write",
            request = { body = "write request", payload = "data when inline, ranges when more than one" },
            reply = { body = "write reply" },
        },
        [0x0022] = {
            "Append",
            request = { body = "write request", payload = "as of Write" },
            reply = { body = "write reply" },
        },
        [0x0023] = { "Commit", request = { body = "commit request" }, reply = { body = "commit reply" } },
        [0x0024] = { "Truncate", request = { body = "range request" }, reply = {} },
        [0x0025] = { "Allocate", request = { body = "range request" }, reply = {} },
        [0x0026] = { "Punch", request = { body = "range request" }, reply = {} },
        [0x0027] = { "Seek", request = { body = "seek request" }, reply = { body = "seek reply" } },
        [0x0028] = { "Hint", request = { body = "hint request" }, reply = {} },
        [0x0029] = {
            "ReadList",
            request = { body = "list request", payload = "lists" },
            reply = { body = "list read reply", payload = "data when inline, explanation when asked" },
        },
        [0x002a] = {
            "WriteList",
            request = { body = "list request", payload = "lists, then data when inline" },
            reply = { body = "write reply", payload = "explanation when asked" },
        },
        [0x002b] = {
            "Batch",
            request = { body = "batch request", payload = "operations, then data of inline writes" },
            reply = { body = "batch reply", payload = "results, then data of inline reads" },
        },
        [0x002c] = { "CopyRange", request = { body = "copy request" }, reply = { body = "copy reply" } },
        [0x002d] = {
            "ReadView",
            request = { body = "view request", payload = "ranges when direct" },
            reply = { body = "list read reply", payload = "data when inline, explanation when asked" },
        },
        [0x002e] = {
            "WriteView",
            request = { body = "view request", payload = "ranges when direct, data when inline" },
            reply = { body = "write reply", payload = "explanation when asked" },
        },
        [0x0030] = {
            "Readdir",
            request = { body = "readdir request" },
            reply = { body = "readdir reply", payload = "directory entries when inline" },
        },
        [0x0031] = {
            "Mkdir",
            request = { body = "name request", payload = "path" },
            reply = { payload = "Attributes" },
        },
        [0x0032] = { "Remove", request = { body = "remove request", payload = "path" }, reply = {} },
        [0x0033] = { "Rename", request = { body = "rename request", payload = "two names" }, reply = {} },
        [0x0034] = {
            "Link",
            request = { body = "link request", payload = "two names" },
            reply = { payload = "Attributes" },
        },
        [0x0035] = {
            "Symlink",
            request = { body = "name request", payload = "two names" },
            reply = { payload = "Attributes" },
        },
        [0x0036] = {
            "Readlink",
            request = { body = "name request", payload = "path" },
            reply = { payload = "the target's bytes" },
        },
        [0x0037] = { "AccessCheck", request = { body = "name request", payload = "path" }, reply = {} },
        [0x0038] = { "Verify", request = { body = "verify request", payload = "path" }, reply = {} },
        [0x0039] = {
            "Mknod",
            request = { body = "mknod request", payload = "path" },
            reply = { payload = "Attributes" },
        },
        [0x0040] = {
            "XattrRead",
            request = { body = "name request", payload = "attribute names" },
            reply = { payload = "the value's bytes" },
        },
        [0x0041] = {
            "XattrWrite",
            request = { body = "name request", payload = "attribute names" },
            reply = {},
        },
        [0x0042] = {
            "XattrList",
            request = { body = "name request", payload = "attribute names" },
            reply = { payload = "names, each ended by a zero byte" },
        },
        [0x0043] = {
            "XattrRemove",
            request = { body = "name request", payload = "attribute names" },
            reply = {},
        },
        [0x0044] = {
            "Statfs",
            request = { body = "name request", payload = "path" },
            reply = { payload = "FsStatistics" },
        },
        [0x0050] = { "FenceWrite", request = { payload = "FenceChange" }, reply = {} },
        [0x0051] = { "FenceRead", request = {}, reply = { payload = "FenceList" } },
        [0x0060] = { "Lock", request = { body = "lock request" }, reply = {} },
        [0x0061] = { "Unlock", request = { body = "unlock request" }, reply = {} },
        [0x0062] = { "LockTest", request = { body = "lock request" }, reply = { body = "lock test reply" } },
        [0x0070] = {
            "ViewSet",
            request = { body = "view set request", payload = "part of a description" },
            reply = {},
        },
        [0x0071] = { "ViewDrop", request = { body = "view drop request" }, reply = {} },
        [0x8001] = { "Notice", request = { body = "notice", payload = "words" } },
        [0x8002] = { "CreditTarget", request = {} },
        [0x8003] = { "BatchDone", request = { body = "batch notice", payload = "noticed results" } },
        [0x8004] = { "LockTurn", request = { body = "lock turn" } },
        [0x8005] = { "Recall", request = { body = "recall" } },
    },
    layouts = {
        header = {
            { 0, 2, "opcode" },
            {
                2,
                2,
                "flags",
                flags = {
                    { 0x01, "REPLY", about = "the message is a reply" },
                    { 0x02, "CHAIN_FORWARD", about = "a further link of this chain follows" },
                    {
                        0x04,
                        "CHAIN_BACK",
                        about = "the request continues the chain that the request before it left open",
                    },
                    {
                        0x08,
                        "SAVE_HANDLE",
                        about = "the handle of the reply is saved for the rest of the chain",
                    },
                    { 0x10, "CALLBACK", about = "the server sends the message of its own accord" },
                    {
                        0x20,
                        "REPLAY",
                        about =
                            "the request is sent again after a reconnect; the server does not depend on it",
                    },
                },
            },
            { 4, 4, "slot" },
            { 8, 4, "sequence" },
            { 12, 2, "credits" },
            { 14, 2, "head_len" },
            { 16, 4, "payload_len" },
            { 20, 4, "status" },
            { 24, 8, "handle" },
            { 32, 4, "deadline_ms" },
            { 36, 4, "reserved", reserved = true },
        },
        notice = {
            {
                0,
                4,
                "kind",
                min = 1,
                max = 2,
                names = { [1] = "draining", [2] = "protocol fault" },
                open = true,
                about = "a client ignores other kinds",
            },
        },
        ["read request"] = {
            { 0, 8, "offset", about = "first byte of the file" },
            { 8, 4, "length", about = "bytes to read" },
            { 12, 1, "method", min = 0, max = 3, about = "how the data travels" },
            { 13, 1, "reserved", reserved = true },
            { 14, 2, "ranges", about = "ranges of the client's memory" },
            {
                16,
                24,
                "range",
                about =
                    "if ranges is 1, the only range; for methods 2 and 3, the number of the eager buffer " ..
                    "as key, then zeros; otherwise zeros. A range may have 0 bytes",
            },
        },
        ["read reply"] = {
            { 0, 4, "count", about = "bytes read; fewer than asked for only at the end of the file" },
            { 4, 4, "end of file", min = 0, max = 1, about = "1 if fewer were read" },
        },
        ["write request"] = {
            { 0, 8, "offset", about = "first byte of the file" },
            { 8, 4, "length", about = "bytes to write" },
            { 12, 1, "method", min = 0, max = 3, about = "how the data travels" },
            { 13, 1, "stability", min = 0, max = 2, about = "when the data must be durable" },
            { 14, 2, "ranges", about = "ranges of the client's memory" },
            { 16, 24, "range", about = "as in a read" },
        },
        ["write reply"] = {
            {
                0,
                8,
                "offset",
                about =
                    "where the data was written; for Append, the place that it got; 0 for WriteList and " ..
                    "WriteView",
            },
            { 8, 4, "count", about = "bytes written; fewer only when an error came after them" },
            {
                12,
                1,
                "stability",
                min = 0,
                max = 2,
                about = "how durable they are; at least what was asked for",
            },
            { 13, 3, "reserved", reserved = true },
            {
                16,
                8,
                "verifier",
                about = "for unstable data: the client compares it with the verifier of the commit",
            },
        },
        ["commit request"] = {
            { 0, 8, "offset", about = "first byte to make durable" },
            { 8, 8, "length", about = "bytes; 0 for all that follow" },
            { 16, 1, "stability", min = 1, max = 2, about = "data-sync or file-sync" },
            { 17, 7, "reserved", reserved = true },
        },
        ["commit reply"] = {
            {
                0,
                8,
                "verifier",
                about =
                    "unstable writes that were answered with this verifier are durable now; others may be " ..
                    "lost",
            },
        },
        ["range request"] = {
            { 0, 8, "offset", about = "first byte; for Truncate, the new size" },
            { 8, 8, "length", about = "bytes" },
        },
        ["copy request"] = {
            { 0, 8, "source", about = "the file that is read" },
            { 8, 8, "source_offset", about = "first byte of the source" },
            { 16, 8, "offset", about = "where it goes" },
            { 24, 8, "length", about = "bytes; 0 for all that follow" },
        },
        ["copy reply"] = {
            { 0, 8, "count", about = "bytes copied, from the first one on" },
            { 8, 8, "verifier", about = "as of an unstable write" },
            {
                16,
                4,
                "end",
                min = 0,
                max = 1,
                about = "1 if the source ended before all that was asked for; for length 0, if all is copied",
            },
            { 20, 4, "reserved", reserved = true },
        },
        ["seek request"] = {
            { 0, 8, "offset", about = "where to begin" },
            {
                8,
                4,
                "what",
                min = 0,
                max = 1,
                names = { [0] = "data", [1] = "hole" },
                about = "what to look for",
            },
            { 12, 4, "reserved", reserved = true },
        },
        ["seek reply"] = {
            { 0, 8, "offset", about = "where the data or hole begins; the end of the file is a hole" },
        },
        ["hint request"] = {
            { 0, 8, "offset", about = "first byte" },
            { 8, 8, "length", about = "bytes; 0 for all that follow" },
            {
                16,
                4,
                "pattern",
                min = 0,
                max = 5,
                names = {
                    [0] = "normal",
                    [1] = "sequential",
                    [2] = "random",
                    [3] = "will need",
                    [4] = "will not need",
                    [5] = "once",
                },
                open = true,
                about = "a server ignores other patterns",
            },
            {
                20,
                4,
                "likelihood",
                min = 0,
                max = 100,
                about = "probability of that use, in percent; 0 if unknown",
            },
        },
        ["eager buffer terms"] = {
            { 0, 2, "count", min = 0, max = 32, about = "eager buffers" },
            { 2, 2, "reads", min = 0, max = 1, about = "the client reads the server's side by RDMA too" },
            {
                4,
                4,
                "size",
                min = 0,
                max = 1044480,
                about = "bytes of data in each; each range has 4,096 more",
            },
        },
        ["list request"] = {
            { 0, 4, "length", about = "total of the extents, and of the ranges where there are any" },
            { 4, 1, "method", min = 0, max = 1, about = "how the data travels" },
            { 5, 1, "stability", min = 0, max = 2, about = "when the data must be durable" },
            {
                6,
                1,
                "sieve",
                min = 0,
                max = 2,
                names = { [0] = "auto", [1] = "on", [2] = "off" },
                about = "whether what lies between the extents is moved too",
            },
            { 7, 1, "flags", flags = { { 0x01, "EXPLAIN" } }, about = "what else is asked" },
            { 8, 4, "extents", min = 0, max = 4096, about = "extents of the file in the payload" },
            { 12, 4, "ranges", about = "ranges of memory in the payload" },
        },
        ["list read reply"] = {
            { 0, 4, "count", about = "bytes read of all extents together" },
            {
                4,
                4,
                "end of file",
                min = 0,
                max = 1,
                about = "1 if the file ended within an extent or before one",
            },
            { 8, 8, "end", about = "offset at which the file ended: LIST-5" },
        },
        explanation = {
            { 0, 4, "parts", about = "parts: contiguous in the file and in memory" },
            {
                4,
                4,
                "copied",
                about = "of them, those copied out of a file in memory, without a call of the file system",
            },
            { 8, 4, "calls", about = "calls that moved one part, or neighbours" },
            { 12, 4, "windows", about = "calls that moved what lies between parts as well" },
            { 16, 4, "waited", about = "of both, those that had to be waited for" },
            { 20, 4, "gap_max", about = "the most bytes between two parts that it was worth moving" },
            { 24, 4, "call_ns", about = "what a call was expected to take, nanoseconds" },
            { 28, 4, "byte_ps", about = "what a byte of a window was expected to take, picoseconds" },
            { 32, 8, "window_bytes", about = "bytes of the windows, with what lies between parts" },
            {
                40,
                8,
                "predicted_ns",
                about = "what the calls that were not waited for were expected to take, nanoseconds",
            },
            { 48, 8, "apart_ns", about = "the same, had nothing been moved that lies between parts" },
            { 56, 8, "measured_ns", about = "what all calls took, nanoseconds" },
        },
        ["view set request"] = {
            { 0, 4, "view", about = "the client's number for the view" },
            { 4, 4, "description_length", about = "bytes of the whole description" },
            { 8, 4, "offset", about = "where in the description the part begins" },
            { 12, 4, "reserved", reserved = true },
        },
        ["view drop request"] = {
            { 0, 4, "view", about = "the client's number for the view" },
            { 4, 4, "reserved", reserved = true },
        },
        ["view request"] = {
            { 0, 8, "displacement", about = "byte of the file at which the first tile begins" },
            { 8, 8, "place", about = "the first byte of the view's data that is moved" },
            { 16, 8, "group", about = "what requests that belong together have in common (VIEW-13)" },
            { 24, 4, "group_size", about = "number of requests in the group; ignored if group is 0" },
            { 28, 4, "view", about = "the client's number for the view" },
            { 32, 4, "length", about = "bytes to move, and the total of the ranges where there are any" },
            { 36, 1, "method", min = 0, max = 1, about = "how the data travels" },
            { 37, 1, "stability", min = 0, max = 2, about = "when the data must be durable" },
            {
                38,
                1,
                "sieve",
                min = 0,
                max = 2,
                names = { [0] = "auto", [1] = "on", [2] = "off" },
                about = "whether what lies between the segments is moved too",
            },
            { 39, 1, "flags", flags = { { 0x01, "EXPLAIN" } }, about = "what else is asked" },
            { 40, 4, "ranges", about = "ranges of memory in the payload" },
            { 44, 4, "reserved", reserved = true },
        },
        ["description of a view"] = {
            { 0, 4, "nodes", min = 1, max = 4096, about = "nodes that follow; the last is the view" },
            { 4, 4, "reserved", reserved = true },
        },
        ["node of a view"] = {
            {
                0,
                1,
                "kind",
                min = 0,
                max = 11,
                names = {
                    [0] = "bytes",
                    [1] = "contiguous",
                    [2] = "vector",
                    [3] = "hvector",
                    [4] = "indexed",
                    [5] = "hindexed",
                    [6] = "indexed block",
                    [7] = "hindexed block",
                    [8] = "struct",
                    [9] = "subarray",
                    [10] = "darray",
                    [11] = "resized",
                },
                about = "which constructor it is",
            },
            {
                1,
                1,
                "order",
                min = 0,
                max = 1,
                names = { [0] = "C", [1] = "Fortran" },
                about = "which dimension of an array is the fastest: of C the last, of Fortran the first",
            },
            { 2, 2, "reserved", reserved = true },
            { 4, 4, "of", about = "what it is made of; the first node is 0" },
            { 8, 4, "entries", about = "entries that follow" },
            { 12, 4, "reserved", reserved = true },
        },
        ["batch request"] = {
            { 0, 4, "operations", min = 0, max = 1024, about = "operations in the payload" },
            { 4, 4, "flags", flags = { { 0x01, "NOTIFY" }, { 0x02, "EXPEDITE" } }, about = "batch.md" },
            { 8, 4, "window_us", about = "hint: microseconds that an end may wait for others" },
            { 12, 4, "completions", about = "hint: ends in one notice; 0 for as many as there are" },
            { 16, 4, "data", about = "bytes of data behind the operations" },
            { 20, 4, "reserved", reserved = true },
        },
        ["batch reply"] = {
            { 0, 4, "operations", about = "results in the payload" },
            { 4, 4, "data", about = "bytes of data behind the results" },
        },
        ["batch notice"] = {
            { 0, 4, "slot", about = "slot of the batch" },
            { 4, 4, "sequence", about = "sequence of the batch" },
            { 8, 4, "results", about = "noticed results in the payload" },
            { 12, 4, "reserved", reserved = true },
        },
        ["operations of a batch"] = {
            { 0, 8, "handle", about = "the file; 2⁶⁴−1 for that of the header" },
            { 8, 1, "kind", min = 0, max = 1, names = { [0] = "read", [1] = "write" } },
            { 9, 1, "stability", min = 0, max = 2, about = "when the data must be durable" },
            { 10, 1, "method", min = 0, max = 1, about = "how the data travels" },
            { 11, 1, "reserved", reserved = true },
            { 12, 4, "length", about = "total of the extents, and of the ranges where there are any" },
            { 16, 4, "extents", about = "extents that follow" },
            { 20, 4, "ranges", about = "ranges that follow" },
        },
        ["results of a batch"] = {
            { 0, 4, "status", about = "the outcome of the operation" },
            { 4, 4, "count", about = "bytes moved" },
            {
                8,
                8,
                "value",
                about =
                    "for a read, the offset at which the file ended (LIST-5), or 2⁶⁴−1 if it did not end; " ..
                    "for a write, the verifier",
            },
        },
        ["noticed results"] = {
            { 0, 4, "place", about = "which operation" },
            { 4, 4, "reserved", reserved = true },
            { 8, 16, "result", about = "as in Results of a batch" },
        },
        ["open request"] = {
            {
                0,
                4,
                "flags",
                flags = {
                    { 0x01, "READ", about = "data may be read" },
                    { 0x02, "WRITE", about = "data may be written" },
                    { 0x04, "CREATE", about = "make the file when it is not there" },
                    { 0x08, "EXCLUSIVE", about = "with CREATE: the file must not be there" },
                    { 0x10, "TRUNCATE", about = "with WRITE: cut the file to no bytes" },
                    { 0x20, "NO_FOLLOW", about = "a symbolic link at the end of the path is an error" },
                    { 0x40, "DIRECTORY", about = "it must be a directory" },
                    {
                        0x80,
                        "DIRECT_IO",
                        about = "bypass the server's page cache where its storage can (O_DIRECT)",
                    },
                    { 0x100, "DENY_READ", about = "others may not open the file to read (files.md)" },
                    { 0x200, "DENY_WRITE", about = "others may not open the file to write" },
                    {
                        0x400,
                        "UNNAMED",
                        about =
                            "make a file without a name in the directory that the path leads to (files.md)",
                    },
                },
                about = "how to open",
            },
            { 4, 4, "mode", min = 0, max = 4095, about = "permission bits of a file that is made" },
        },
        ["share request"] = {
            {
                0,
                4,
                "rights",
                flags = { { 0x01, "read" }, { 0x02, "write" } },
                about = "what the token allows",
            },
            { 4, 4, "ttl_ms", about = "how long the token is to live; 0 for 60,000" },
        },
        ["share reply"] = {
            { 0, 4, "ttl_ms", min = 1, max = 60000, about = "how long the token lives" },
            { 4, 4, "reserved", reserved = true },
        },
        ["name request"] = {
            { 0, 4, "follow", min = 0, max = 1, about = "follow a symbolic link at the end of the path" },
            { 4, 4, "mode", min = 0, max = 4095, about = "see below" },
        },
        ["mknod request"] = {
            {
                0,
                4,
                "kind",
                min = 0,
                max = 3,
                about = "0 FIFO, 1 socket, 2 character device, 3 block device",
            },
            { 4, 4, "mode", min = 0, max = 4095, about = "permission bits" },
            { 8, 8, "device", about = "number of the device, as in Attributes" },
        },
        ["path and attributes"] = { { 0, 2, "path length", max = 4096 } },
        ["two names"] = { { 0, 2, "length of the first", max = 4096 } },
        ["remove request"] = {
            {
                0,
                4,
                "directory",
                min = 0,
                max = 1,
                about = "1: it must be an empty directory; 0: it must not be a directory",
            },
            { 4, 4, "reserved", reserved = true },
        },
        ["rename request"] = {
            { 0, 8, "second handle", about = "where the second path begins" },
            {
                8,
                4,
                "replace",
                min = 0,
                max = 2,
                about = "what becomes of an existing name: 0 an error, 1 replaced, 2 exchanged",
            },
            { 12, 4, "reserved", reserved = true },
        },
        ["link request"] = {
            { 0, 8, "second handle", about = "where the second path begins" },
            {
                8,
                4,
                "replace",
                min = 0,
                max = 1,
                about =
                    "what becomes of an existing name: 0 an error, 1 replaced, unless that of a directory",
            },
            { 12, 4, "reserved", reserved = true },
        },
        ["readdir request"] = {
            {
                0,
                8,
                "cookie",
                about =
                    "begin behind the entry with this cookie; 0 for the first. Any other number lists " ..
                    "some entries, or fails",
            },
            {
                8,
                4,
                "length",
                about =
                    "most bytes of directory entries that are wanted. A reply never has more than 1 MiB " ..
                    "of them; inline not more than the client's payload, direct not more than the range",
            },
            { 12, 4, "attributes", min = 0, max = 1, about = "entries have attributes" },
            {
                16,
                24,
                "range",
                about =
                    "where the server writes the entries. With length 0 they are in the reply, and key " ..
                    "and offset are ignored",
            },
        },
        ["readdir reply"] = {
            { 0, 4, "count", about = "bytes of directory entries" },
            { 4, 4, "end", min = 0, max = 1, about = "no entries follow" },
            {
                8,
                8,
                "cookie",
                about = "the cookie of the last entry; if there are no entries, that of the request",
            },
        },
        ["directory entries"] = { { 0, 8, "cookie" }, { 8, 2, "name length", min = 1, max = 255 } },
        ["verify request"] = {
            {
                0,
                4,
                "mask",
                flags = { { 0x01, "CHANGE" }, { 0x02, "SIZE" }, { 0x04, "MTIME" }, { 0x08, "IDENTITY" } },
                about = "what is compared",
            },
            {
                4,
                4,
                "flags",
                flags = { { 0x01, "DIFFER" }, { 0x02, "FOLLOW" } },
                about =
                    "DIFFER: one of them must differ. FOLLOW: follow a symbolic link at the end of the " ..
                    "path",
            },
            { 8, 8, "change", about = "as in Attributes" },
            { 16, 8, "size", about = "the same" },
            { 24, 8, "mtime_seconds", about = "seconds of mtime, as two's complement" },
            { 32, 4, "mtime_nanoseconds", max = 999999999, about = "nanoseconds of mtime" },
            { 36, 4, "reserved", reserved = true },
            { 40, 8, "file_id", about = "as in Attributes" },
            { 48, 8, "generation", about = "the same" },
        },
        ["attribute names"] = { { 0, 2, "path length", max = 4096 } },
        ["lock request"] = {
            { 0, 8, "offset", about = "where the range begins" },
            { 8, 8, "length", about = "its bytes; 0: all that follow (locks.md)" },
            { 16, 8, "owner", about = "the client's name for whoever locks" },
            {
                24,
                2,
                "kind",
                min = 1,
                max = 2,
                names = { [1] = "shared", [2] = "exclusive" },
                about = "whether others may hold it too",
            },
            {
                26,
                2,
                "flags",
                flags = {
                    { 0x01, "WAIT" },
                    { 0x02, "MANDATORY" },
                    { 0x04, "RECLAIM" },
                    { 0x08, "NOTIFY" },
                    { 0x10, "CANCEL" },
                    { 0x20, "PERSISTENT" },
                    { 0x40, "REPAIR" },
                    { 0x80, "LAST" },
                },
                about = "what else is asked (locks.md); LockTest ignores it",
            },
            { 28, 4, "reserved", reserved = true },
        },
        ["unlock request"] = {
            { 0, 8, "offset", about = "where the range begins" },
            { 8, 8, "length", about = "its bytes; 0: all that follow" },
            { 16, 8, "owner", about = "the client's name for whoever holds it" },
        },
        ["lock test reply"] = {
            { 0, 4, "conflicts", min = 0, max = 1, about = "a lock is in the way; 0: all that follows is 0" },
            {
                4,
                4,
                "kind",
                min = 0,
                max = 3,
                names = { [0] = "none", [1] = "shared", [2] = "exclusive", [3] = "broken" },
                about = "its kind",
            },
            { 8, 8, "offset", about = "where it begins" },
            { 16, 8, "length", about = "its bytes; 0: all that follow" },
            { 24, 8, "owner", about = "its owner, as its client names it" },
            { 32, 16, "client_id", about = "the client that holds it" },
        },
        ["lock turn"] = {
            { 0, 8, "handle", about = "the open file" },
            { 8, 8, "offset", about = "where the range begins" },
            { 16, 8, "length", about = "its bytes; 0: all that follow" },
            { 24, 8, "owner", about = "the client's name for whoever waits" },
        },
        recall = { { 0, 8, "handle", about = "the open file whose descriptor is wanted back" } },
    },
    nodes = {
        [0] = { "bytes", fields = { { 16, 8, "length", about = "bytes side by side" } }, entries = {} },
        [1] = { "contiguous", fields = { { 16, 8, "count", about = "copies side by side" } }, entries = {} },
        [2] = {
            "vector",
            fields = {
                { 16, 8, "count", about = "blocks" },
                { 24, 8, "block_length", about = "copies in a block" },
                {
                    32,
                    8,
                    "stride",
                    signed = true,
                    about = "from one block to the next, in extents of the node that it is made of",
                },
            },
            entries = {},
        },
        [3] = {
            "hvector",
            fields = {
                { 16, 8, "count", about = "blocks" },
                { 24, 8, "block_length", about = "copies in a block" },
                { 32, 8, "stride", signed = true, about = "from one block to the next, in bytes" },
            },
            entries = {},
        },
        [4] = {
            "indexed",
            fields = {},
            entries = {
                { 0, 8, "block_length", about = "copies in the block" },
                {
                    8,
                    8,
                    "displacement",
                    signed = true,
                    about = "where the block begins, in extents of the node that it is made of",
                },
            },
        },
        [5] = {
            "hindexed",
            fields = {},
            entries = {
                { 0, 8, "block_length", about = "copies in the block" },
                { 8, 8, "displacement", signed = true, about = "where the block begins, in bytes" },
            },
        },
        [6] = {
            "indexed block",
            fields = { { 16, 8, "block_length", about = "copies in a block" } },
            entries = {
                {
                    0,
                    8,
                    "displacement",
                    signed = true,
                    about = "where the block begins, in extents of the node that it is made of",
                },
            },
        },
        [7] = {
            "hindexed block",
            fields = { { 16, 8, "block_length", about = "copies in a block" } },
            entries = { { 0, 8, "displacement", signed = true, about = "where the block begins, in bytes" } },
        },
        [8] = {
            "struct",
            fields = {},
            entries = {
                { 0, 8, "block_length", about = "copies in the block" },
                { 8, 8, "displacement", signed = true, about = "where the block begins, in bytes" },
                { 16, 4, "of", about = "a node before this one: what the block is made of" },
                { 20, 4, "reserved", reserved = true, about = "0" },
            },
        },
        [9] = {
            "subarray",
            fields = {},
            entries = {
                { 0, 8, "size", about = "elements of the array in this dimension" },
                { 8, 8, "subsize", about = "elements of the part; start + subsize ≤ size" },
                { 16, 8, "start", about = "the first element of the part" },
            },
        },
        [10] = {
            "darray",
            fields = {
                { 16, 4, "processes", about = "processes of the grid" },
                { 20, 4, "process", about = "which of them, < processes" },
            },
            entries = {
                { 0, 8, "size", about = "elements of the array in this dimension" },
                {
                    8,
                    8,
                    "block",
                    about =
                        "elements of a block; 0 for the default of the distribution, and where there is " ..
                        "none",
                },
                {
                    16,
                    4,
                    "distribution",
                    min = 0,
                    max = 2,
                    names = { [0] = "none", [1] = "block", [2] = "cyclic" },
                    about = "0 none, 1 block, 2 cyclic",
                },
                {
                    20,
                    4,
                    "grid_processes",
                    about = "processes along this dimension; 1 where distribution is 0",
                },
            },
        },
        [11] = {
            "resized",
            fields = {
                { 16, 8, "lower", signed = true, about = "lower bound, in bytes" },
                { 24, 8, "extent", signed = true, about = "from one copy to the next, in bytes" },
            },
            entries = {},
        },
    },
    structures = {
        Hello = {
            { "version_min", "u16", about = "oldest version that the client speaks" },
            {
                "version_max",
                "u16",
                about =
                    "newest version. Where 1 is not from version_min to version_max, the reply is VERSION",
            },
            { "features", "u64", about = "all features that it knows" },
            { "nonce", "bytes[32]", about = "goes into the proofs" },
            { "key_name", "string", max = 256, about = "the key that it will prove; empty for none" },
            { "client_id", "bytes[16]", about = "fences go by it; a resumed session has the same" },
            { "client_name", "string", max = 256, about = "for people: program and host" },
            { "uid", "u32", about = "user that it claims to act as (access.md)" },
            { "gid", "u32", about = "group" },
            { "groups", "u32[]", max = 32, about = "supplementary groups" },
            { "slots", "u16", min = 1, about = "slots that it asks for; ignored when a session is resumed" },
            { "resume", "Resume?", about = "the session to take up again" },
        },
        Resume = {
            { "session", "u64", about = "session of its Welcome" },
            { "secret", "bytes[16]", about = "secret of its Welcome" },
        },
        HelloReply = {
            {
                "version",
                "u16",
                min = 1,
                max = 1,
                about = "the version that holds: the highest that both speak",
            },
            { "nonce", "bytes[32]", about = "goes into the proofs" },
            { "key_required", "bool", about = "the listener demands a key" },
            { "server_name", "string", max = 256, about = "for people: program and version" },
        },
        Authenticate = { { "proof", "binary", about = "the client's proof" } },
        AuthenticateReply = {
            { "proof", "binary", about = "the server's proof" },
            { "welcome", "Welcome", about = "what was agreed" },
        },
        Welcome = {
            { "session", "u64", about = "names the session; not a secret" },
            { "secret", "bytes[16]", about = "resumes the session" },
            { "resumed", "bool", about = "it is the session that was to be resumed, not a new one" },
            {
                "server_epoch",
                "u64",
                about = "another one: all sessions, handles and kept replies of before are gone",
            },
            { "features", "u64", about = "features that hold" },
            { "slots", "u16", about = "slots of the session, 0 … slots − 1" },
            { "credits", "u16", about = "requests that may be outstanding now" },
            { "keep_alive_ms", "u32", about = "silence after which the client sends Null" },
            { "lease_ms", "u32", about = "how long a session survives without a sign of its client" },
            { "thresholds", "Thresholds", about = "inline limits" },
            { "transfer_size_max", "u32", min = 1, about = "largest length of a read or write" },
            { "handles_max", "u32", about = "open handles of a session" },
            { "slot_reports", "SlotReport[]", about = "what became of the last request of each slot" },
            {
                "gather",
                "Crossovers?",
                absent = true,
                about = "size of a piece of memory from which gathering by RDMA is faster than packing",
            },
            {
                "cluster",
                "ClusterTerms?",
                absent = true,
                about = "what a client does when it loses this server (cluster.md)",
            },
        },
        ClusterTerms = {
            {
                "term_ms",
                "u32",
                min = 100,
                max = 60000,
                about = "silence of this server after which its client asks another",
            },
            {
                "servers",
                "string[]",
                about =
                    "addresses of the other servers, each as dafs+tcp://host:port or " ..
                    "dafs+verbs://host:port",
            },
            { "outcomes", "SlotOutcome[]?", about = "what the session that was to be resumed has done" },
        },
        SlotOutcome = {
            { "slot", "u32", about = "slot of the session that was to be resumed" },
            { "sequence", "u32", about = "number of its last request" },
            { "reply", "OutcomeReply?", about = "the reply to that request" },
        },
        OutcomeReply = {
            { "status", "u32", about = "the status of the reply" },
            { "offset", "u64", about = "where the data of an append begins; all of it was written" },
            {
                "payload",
                "binary",
                about = "the payload of the reply: attributes, where the opcode replies them",
            },
        },
        Thresholds = {
            {
                "read_inline_max",
                "u32",
                about =
                    "largest inline read, bytes, that the server advises. The limit is the client's " ..
                    "payload, as its transport has told the server, and over shm as the server has " ..
                    "lowered it",
            },
            { "write_inline_max", "u32", about = "largest inline write, bytes: the server's payload" },
            { "crossovers", "Crossovers", about = "sizes from which direct is faster than inline" },
        },
        Crossovers = {
            { "read_registered", "u32", about = "bytes, for reads into memory that is registered already" },
            {
                "read_unregistered",
                "u32",
                about = "bytes, for reads into memory that is registered for the operation",
            },
            { "write_registered", "u32", about = "bytes, for writes from memory that is registered already" },
            {
                "write_unregistered",
                "u32",
                about = "bytes, for writes from memory that is registered for the operation",
            },
        },
        SlotReport = {
            { "slot", "u32", about = "the slot" },
            { "sequence", "u32", about = "number of the last request that arrived in it" },
            {
                "executed",
                "bool",
                about =
                    "that request was executed and answered; false: it is being executed, or was abandoned",
            },
        },
        LimitsReply = {
            { "thresholds", "Thresholds", about = "as in Welcome" },
            { "transfer_size_max", "u32", about = "as in Welcome" },
            { "handles_max", "u32", about = "as in Welcome" },
            { "slots", "u16", about = "slots of the session" },
            { "credits", "u16", about = "requests that the session may have outstanding now" },
            {
                "uid",
                "u32",
                about = "user of the session's identity; each export decides which user it acts as there",
            },
            { "gid", "u32", about = "group of the session's identity" },
        },
        Statistics = {
            { "uptime_ms", "u64", about = "milliseconds since the server began" },
            { "sessions", "u64", about = "sessions now" },
            { "connections", "u64", about = "connections now" },
            { "in_flight", "u64", about = "operations in flight now" },
            { "handles", "u64", about = "open handles now" },
            { "operations", "[string, u64][]", about = "requests answered, by name of the opcode" },
            { "bytes_read", "[u64, u64]", about = "bytes that clients read inline, then direct" },
            { "bytes_written", "[u64, u64]", about = "bytes that clients wrote inline, then direct" },
            { "replies_replayed", "u64", about = "kept replies that were sent again" },
            { "protocol_errors", "u64", about = "sessions and connections ended for a protocol fault" },
            { "storage_waits", "u64", about = "reads and writes that had to wait for storage" },
            { "exports", "ExportStatistics[]", about = "for each export that the client may mount" },
            {
                "bytes_eager",
                "[u64, u64]",
                absent = true,
                about = "bytes read, then written, by the method eager; may be absent",
            },
            {
                "bytes_client_initiated",
                "[u64, u64]",
                absent = true,
                about = "bytes read, then written, by the method client-initiated; may be absent",
            },
            {
                "eager_buffers_size",
                "u64",
                absent = true,
                about = "bytes lent to clients as eager buffers now; may be absent",
            },
            {
                "zones",
                "ZoneStatistics[]",
                absent = true,
                about = "transfer buffers, by size; may be absent",
            },
            {
                "pipelines",
                "PipelineStatistics[]",
                absent = true,
                about = "transfers through buffers, by listener; may be absent",
            },
            {
                "clients",
                "ClientStatistics[]",
                absent = true,
                about =
                    "clients that have sessions now, for whoever may change fences; empty for others; may " ..
                    "be absent",
            },
            {
                "sieved_windows",
                "u64",
                absent = true,
                about = "windows of files written in place of small parts of lists; may be absent",
            },
        },
        ClientStatistics = {
            { "client_id", "bytes[16]", about = "its id, as Hello had it" },
            { "name", "string", about = "what it calls itself" },
            { "address", "string", about = "its address, without the port; empty for the server's host" },
            { "key", "string", about = "the key that it has proven; empty for none" },
            { "sessions", "u64", about = "how many sessions it has" },
        },
        ExportStatistics = {
            { "name", "string", about = "name of the export" },
            { "bytes_read", "u64", about = "bytes read" },
            { "bytes_written", "u64", about = "bytes written" },
        },
        ZoneStatistics = {
            { "size", "u64", about = "bytes of one buffer" },
            { "total", "u64", about = "buffers of this size" },
            { "free", "u64", about = "buffers that nobody has" },
            { "lent", "u64", about = "buffers in use" },
            {
                "lent_from_bigger",
                "u64",
                about = "times that a bigger buffer was lent in place of one of these",
            },
            { "chops", "u64", about = "times that a smaller one was lent, and the transfer cut" },
            { "waits", "u64", about = "times that an operation waited for one" },
        },
        PipelineStatistics = {
            { "listener", "string", about = "address of the listener" },
            { "chunk_size", "u64", about = "bytes of a chunk" },
            { "depth", "u64", about = "chunks of one transfer in progress at once" },
            {
                "overlaps",
                "u64",
                about = "chunks that began while another of the same transfer was in progress",
            },
            { "chunks", "u64", about = "chunks moved" },
        },
        MountReply = {
            { "read_only", "bool", about = "nothing may be changed below this root" },
            { "attributes", "Attributes", about = "of the root" },
        },
        Attributes = {
            {
                "kind",
                "enumeration",
                names = { "File", "Directory", "Symlink", "BlockDevice", "CharDevice", "Fifo", "Socket" },
                about = "what it is",
            },
            { "mode", "u32", max = 4095, about = "permission bits" },
            { "links", "u32", about = "number of names" },
            { "uid", "u32", about = "owner" },
            { "gid", "u32", about = "group" },
            { "size", "u64", about = "bytes of data" },
            { "allocated", "u64", about = "bytes of storage in use" },
            { "file_id", "u64", about = "names the file in its file system (inode number)" },
            { "fs_id", "u64", about = "names the file system" },
            { "atime", "Timestamp", about = "last read" },
            { "mtime", "Timestamp", about = "last change of the data" },
            { "ctime", "Timestamp", about = "last change of the attributes" },
            { "device", "u64", about = "device number" },
            { "generation", "u64", about = "differs between files that have had the same file_id" },
            {
                "change",
                "u64",
                about =
                    "differs after each change of the data, of the attributes, or of the names in a " ..
                    "directory",
            },
        },
        Timestamp = {
            { "seconds", "i64", about = "since 1970-01-01 00:00 UTC; negative before" },
            { "nanoseconds", "u32", max = 999999999, about = "nanoseconds after seconds" },
        },
        SetAttributes = {
            { "mode", "u32?", max = 4095, about = "permission bits" },
            { "uid", "u32?", about = "owner" },
            { "gid", "u32?", about = "group" },
            { "atime", "SetTime?", about = "last read" },
            { "mtime", "SetTime?", about = "last change of the data" },
        },
        FsStatistics = {
            { "block_size", "u64", about = "bytes of a block" },
            { "blocks", "u64", about = "blocks in all" },
            { "blocks_free", "u64", about = "blocks free" },
            { "blocks_available", "u64", about = "blocks free for unprivileged users" },
            { "files", "u64", about = "files in all" },
            { "files_free", "u64", about = "files free" },
            { "name_size_max", "u32", about = "longest name, bytes" },
        },
        FenceList = {
            {
                "mode",
                "enumeration",
                names = { "Deny", "Allow" },
                about = "Deny: who is in the list is fenced off the export; Allow: all others are",
            },
            { "clients", "bytes[16][]", about = "clients by their client_id" },
            { "keys", "string[]", about = "clients by the name of the key that they have proven" },
            { "addresses", "string[]", about = "clients by their address" },
        },
        FenceChange = {
            { "mode", "enumeration", names = { "Deny", "Allow" }, about = "as in FenceList" },
            { "clients", "bytes[16][]", about = "as there" },
            { "keys", "string[]", about = "as there" },
            { "addresses", "string[]", about = "as there" },
            {
                "before",
                "bytes[32]",
                absent = true,
                about =
                    "SHA-256 of the FenceList to be replaced, as FenceRead returned it. If it is absent, " ..
                    "any list is replaced",
            },
        },
    },
    tcp = {
        hello = {
            { 0, 8, "magic", about = "\"dafs-tcp\"" },
            {
                8,
                2,
                "version",
                min = 2,
                max = 2,
                about = "of this transport; peers of different versions do not talk",
            },
            {
                10,
                2,
                "recv_depth",
                min = 1,
                max = 4096,
                about =
                    "messages that this side is ready to hold; a session gets at most recv_depth − 4 " ..
                    "slots, so a client states its slots and 16. Nothing on the stream counts messages: " ..
                    "the peer takes it as the bound of its own queue",
            },
            {
                12,
                4,
                "recv_payload_max",
                min = 0,
                max = 1048576,
                about = "largest payload of a SEND to this side, bytes",
            },
            {
                16,
                2,
                "rdma_depth",
                min = 1,
                max = 4096,
                about = "RDMA operations that this side wants, and reads that it serves, at once",
            },
            { 18, 14, "reserved", reserved = true },
        },
        header = {
            { 0, 1, "kind" },
            { 1, 1, "flags" },
            { 2, 2, "head_len" },
            { 4, 4, "len" },
            { 8, 8, "key" },
            { 16, 8, "offset" },
            { 24, 4, "value" },
            { 28, 4, "reserved", reserved = true },
        },
        range = { { 0, 8, "key" }, { 8, 8, "offset" }, { 16, 8, "length", min = 1, max = 16777216 } },
        faults = {
            [1] = "malformed frame",
            [2] = "no region has the key",
            [3] = "outside the region",
            [4] = "the region's rights do not allow it",
        },
        kinds = {
            [1] = {
                "SEND",
                head_len = "bytes of head",
                len = "bytes of payload",
                head_len_min = 1,
                head_len_max = 112,
                len_min = 0,
                body = "head_len + len",
            },
            [2] = {
                "WRITE",
                flag = 0x01,
                flag_name = "immediate",
                len = "bytes of data",
                key = "region",
                offset = "first byte in it",
                value = "the immediate, with flag 0x01; else –",
                head_len_min = 0,
                head_len_max = 0,
                len_min = 0,
                len_max = 16777216,
                body = "len",
            },
            [3] = {
                "READ_REQUEST",
                len = "bytes wanted",
                key = "region",
                offset = "first byte in it",
                value = "read id",
                head_len_min = 0,
                head_len_max = 0,
                len_min = 0,
                len_max = 16777216,
                body = "0",
            },
            [4] = {
                "READ_RESPONSE",
                len = "bytes of data",
                offset = "counted from the start of the read",
                value = "read id",
                head_len_min = 0,
                head_len_max = 0,
                len_min = 0,
                len_max = 16777216,
                body = "len",
            },
            [5] = {
                "FAULT",
                key = "by code",
                offset = "by code",
                value = "code",
                head_len_min = 0,
                head_len_max = 0,
                len_min = 0,
                len_max = 0,
                body = "0",
            },
            [6] = {
                "WRITE_LIST",
                head_len = "ranges",
                len = "bytes of data, all ranges together",
                head_len_min = 1,
                head_len_max = 256,
                len_min = 1,
                len_max = 16777216,
                body = "24 × head_len + len",
            },
            [7] = {
                "READ_LIST",
                head_len = "ranges",
                len = "bytes wanted, all ranges together",
                value = "read id",
                head_len_min = 1,
                head_len_max = 256,
                len_min = 1,
                len_max = 16777216,
                body = "24 × head_len",
            },
        },
    },
}
-- End of the tables.

local dafs = Proto("dafs", "Direct Access File System (dafs)")

local MAGIC = "dafs-tcp"
local HELLO_SIZE = 32
local FRAME_HEADER_SIZE = 32
local HEADER_SIZE = 40
local HEAD_SIZE_MAX = 112
local EXTENT_SIZE = 12
local RANGE_SIZE = 24
local RESULT_SIZE = 16
local TOKEN_SIZE = 32
local RANGES_MAX = 256
local LIST_RANGES_MAX = 4096
local INLINE, DIRECT, EAGER, CLIENT_INITIATED = 0, 1, 2, 3
local SEND, WRITE, READ_REQUEST, READ_RESPONSE, FAULT, WRITE_LIST, READ_LIST = 1, 2, 3, 4, 5, 6, 7
local REPLY, CALLBACK = 0x01, 0x10

local NUMBERS = {}
for number, opcode in pairs(SPEC.opcodes) do
    NUMBERS[opcode[1]] = number
end

-- Experts -------------------------------------------------------------------------------------------------------------

local function new_expert(name, text, group, severity)
    return ProtoExpert.new("dafs." .. name, text, expert.group[group], expert.severity[severity])
end

local E = {
    short = new_expert("ends_too_early", "The message ends too early", "MALFORMED", "ERROR"),
    left = new_expert("bytes_left_over", "Bytes stand behind the last field", "MALFORMED", "ERROR"),
    structure = new_expert("not_the_structure", "MessagePack is not the structure", "MALFORMED", "ERROR"),
    frame = new_expert("malformed_frame", "The frame is malformed", "MALFORMED", "ERROR"),
    limit = new_expert("beyond_a_limit", "A count or length is beyond its limit", "PROTOCOL", "ERROR"),
    value = new_expert("value_not_allowed", "The value is not allowed", "PROTOCOL", "ERROR"),
    reserved = new_expert("reserved_not_zero", "A reserved byte is not zero", "PROTOCOL", "ERROR"),
    opcode = new_expert("opcode_unknown", "The opcode is not known", "UNDECODED", "ERROR"),
    invalid = new_expert("answered_invalid", "A server answers INVALID", "PROTOCOL", "WARN"),
    name = new_expert("name_too_long", "A server answers NAME_TOO_LONG", "PROTOCOL", "WARN"),
    form = new_expert("not_shortest", "The number is not in its shortest form", "PROTOCOL", "WARN"),
    fault = new_expert("peer_at_fault", "The peer is told of a fault", "SEQUENCE", "WARN"),
    unknown = new_expert("value_unknown", "The value has no name", "UNDECODED", "NOTE"),
    status = new_expert("failed", "The request failed", "RESPONSE_CODE", "NOTE"),
    again = new_expert("sent_again", "The request is sent again", "SEQUENCE", "NOTE"),
    lost = new_expert("not_decoded", "Bytes are not decoded", "UNDECODED", "NOTE"),
}

dafs.experts = {}
do
    local experts = {}
    for _, info in pairs(E) do
        experts[#experts + 1] = info
    end
    dafs.experts = experts
end

-- Fields --------------------------------------------------------------------------------------------------------------

-- Every field by its name without "dafs.".
local F = {}

-- Fields of bits, by the name of the field that they are in.
local BITS = {}

-- Shorter names for filters than the headings of the pages.
local SHORT = {
    ["header"] = "",
    ["operations of a batch"] = "batch_operation.",
    ["results of a batch"] = "batch_result.",
    ["noticed results"] = "noticed_result.",
    ["directory entries"] = "directory_entry.",
    ["path and attributes"] = "names.",
    ["two names"] = "names.",
    ["attribute names"] = "names.",
    ["description of a view"] = "view_description.",
    ["node of a view"] = "view_node.",
}

local HEXADECIMAL = {
    opcode = true, flags = true, handle = true, second_handle = true, key = true, verifier = true,
    features = true, session = true, server_epoch = true, rights = true,
}

local function slug(name)
    return (name:lower():gsub("[^%w]+", "_"))
end

-- `AuthenticateReply` is `authenticate_reply`.
local function structure_prefix(name)
    return slug(name:gsub("(%l)(%u)", "%1 %2")) .. "."
end

local function layout_prefix(name)
    return SHORT[name] or (slug(name) .. ".")
end

local function define(name, title, ftype, options)
    options = options or {}
    if not F[name] then
        F[name] = ProtoField.new(
            title, "dafs." .. name, ftype, options.names, options.base, options.mask, options.about)
    end
    return F[name]
end

local function names_of_statuses()
    local names = {}
    for number, status in pairs(SPEC.statuses) do
        names[number] = status[1]
    end
    return names
end

local function names_of_opcodes()
    local names = {}
    for number, opcode in pairs(SPEC.opcodes) do
        names[number] = opcode[1]
    end
    return names
end

local function names_of_kinds()
    local names = {}
    for number, kind in pairs(SPEC.tcp.kinds) do
        names[number] = kind[1]
    end
    return names
end

local NAMES = {
    method = SPEC.methods,
    stability = SPEC.stabilities,
    status = names_of_statuses(),
    opcode = names_of_opcodes(),
}

local YES_NO = { [0] = "no", [1] = "yes" }

local function names_of(field)
    local name, is_boolean = field[3], field.min == 0 and field.max == 1
    return field.names or NAMES[name] or (is_boolean and YES_NO) or nil
end

local function base_of(name)
    if HEXADECIMAL[name] then
        return base.HEX
    end
    if name == "mode" then
        return base.OCT
    end
    return base.DEC
end

local UNSIGNED = { [1] = ftypes.UINT8, [2] = ftypes.UINT16, [4] = ftypes.UINT32, [8] = ftypes.UINT64 }

local function define_bits(name, size, flags)
    local bits = {}
    for _, flag in ipairs(flags) do
        local options = { base = size * 8, mask = flag[1], about = flag.about }
        bits[#bits + 1] = define(name .. "." .. slug(flag[2]), flag[2], ftypes.BOOLEAN, options)
    end
    BITS[name] = bits
end

-- The fields of a table of fixed offsets.
local function define_layout(prefix, layout)
    for _, field in ipairs(layout) do
        local size, name = field[2], prefix .. slug(field[3])
        local ftype = UNSIGNED[size]
        if ftype and not field.reserved then
            local options = { names = names_of(field), base = base_of(slug(field[3])), about = field.about }
            define(name, field[3], ftype, options)
            if field.flags then
                define_bits(name, size, field.flags)
            end
        elseif field[3] == "client_id" then
            define(name, field[3], ftypes.BYTES, { about = field.about })
        end
    end
end

-- Bits of numbers in MessagePack: each is a field of its own, as they have no fixed place.
local function define_named_bits(name, flags)
    for _, flag in ipairs(flags) do
        define(name .. "." .. slug(flag[2]), flag[2], ftypes.BOOLEAN, { about = flag.about })
    end
end

local INTEGERS = {
    u8 = { ftypes.UINT8, 0xff },
    u16 = { ftypes.UINT16, 0xffff },
    u32 = { ftypes.UINT32, 0xffffffff },
    u64 = { ftypes.UINT64 },
    i64 = { ftypes.INT64 },
}

-- The fields of one type of MessagePack. Bytes are shown as hexadecimal text: on the wire they are numbers.
local function define_type(name, title, kind, options)
    local inner = kind:match("^(.*)%?$") or kind:match("^(.*)%[%]$")
    if kind:match("^bytes%[%d+%]$") then
        define(name, title, ftypes.STRING, options)
    elseif inner then
        define_type(name, title, inner, options)
    elseif kind:match("^%[") then
        local first, second = kind:match("^%[(%w+), (%w+)%]$")
        if first == second then
            define_type(name, title, first, options)
        else
            define_type(name .. "." .. first, title, first, options)
            define_type(name .. "." .. second, title, second, options)
            define(name, title, ftypes.NONE, options)
        end
    elseif INTEGERS[kind] then
        local is_signed = kind == "i64"
        local shown_as = is_signed and base.DEC or base_of(name:match("[^.]*$"))
        define(name, title, INTEGERS[kind][1], { base = shown_as, about = options.about })
        if title == "features" then
            define_named_bits(name, SPEC.features)
        end
    elseif kind == "bool" then
        define(name, title, ftypes.BOOLEAN, options)
    elseif kind == "string" or kind == "binary" or kind == "enumeration" or kind == "SetTime" then
        define(name, title, ftypes.STRING, options)
    else
        assert(SPEC.structures[kind], kind .. " is no type")
        define(name, title, ftypes.NONE, options)
    end
end

for name, layout in pairs(SPEC.layouts) do
    define_layout(layout_prefix(name), layout)
end
for name, structure in pairs(SPEC.structures) do
    for _, field in ipairs(structure) do
        define_type(structure_prefix(name) .. field[1], field[1], field[2], { about = field.about })
    end
end

-- Fields of nodes of views. Those of one name are of one type, whichever kind they belong to.
local function define_node_fields(prefix, fields)
    for _, field in ipairs(fields) do
        if not field.reserved then
            local ftype = field.signed and ftypes.INT64 or UNSIGNED[field[2]]
            define(prefix .. field[3], field[3], ftype, { names = field.names, base = base.DEC })
        end
    end
end

for _, kind in pairs(SPEC.nodes) do
    define_node_fields("view_node.", kind.fields)
    define_node_fields("view_entry.", kind.entries)
end
define_layout("tcp_hello.", SPEC.tcp.hello)
SPEC.tcp.header[1].names = names_of_kinds()
define_layout("frame.", SPEC.tcp.header)
define_layout("range.", SPEC.tcp.range)

-- Fields that no table has.
define("tcp_hello.magic_text", "magic", ftypes.STRING, { about = "the transport" })
define("extent", "extent", ftypes.NONE, { about = "a contiguous range of the file" })
define("extent.offset", "offset", ftypes.UINT64, { base = base.DEC })
define("extent.length", "length", ftypes.UINT32, { base = base.DEC })
define("range", "range", ftypes.NONE, { about = "registered memory of the sender" })
define("explanation", "explanation", ftypes.NONE, { about = "how a list was moved" })
define("batch_operation", "operation", ftypes.NONE)
define("batch_result", "result", ftypes.NONE)
define("noticed_result", "noticed result", ftypes.NONE)
define("directory_entry", "entry", ftypes.NONE)
define("directory_entry.name", "name", ftypes.STRING)
define("directory_entry.attributes_length", "attributes length", ftypes.UINT16, { base = base.DEC })
define("view_node", "node", ftypes.NONE, { about = "a constructor of a datatype" })
define("view_entry", "entry", ftypes.NONE)
define("view_part", "part of a description", ftypes.BYTES, { about = "of a view" })
define("data", "data", ftypes.BYTES, { about = "data of a file" })
define("reserved", "reserved", ftypes.BYTES, { about = "zero" })
define("rest", "not decoded", ftypes.BYTES)
define("words", "words", ftypes.STRING, { about = "explains a failure or a notice" })
define("export", "export", ftypes.STRING, { about = "name of an export" })
define("path", "path", ftypes.STRING)
define("second_path", "second path", ftypes.STRING)
define("target", "target", ftypes.STRING, { about = "of a symbolic link" })
define("names.second_length", "length of the second", ftypes.UINT16, { base = base.DEC })
define("names.name_length", "name length", ftypes.UINT16, { base = base.DEC })
define("xattr.name", "name of the attribute", ftypes.STRING)
define("xattr.value", "value of the attribute", ftypes.BYTES)
define("token", "token", ftypes.BYTES, { about = "a secret, by which another session opens the file" })
define("fenced", "fenced client id", ftypes.STRING)
define("msgpack.count", "count", ftypes.UINT32, { base = base.DEC, about = "elements of an array" })
define("msgpack.nil", "nil", ftypes.NONE)
define("body", "body", ftypes.NONE)
define("payload", "payload", ftypes.NONE)
define("frame.immediate", "immediate", ftypes.BOOLEAN, { base = 8, mask = SPEC.tcp.kinds[WRITE].flag })
define("request_in", "request in frame", ftypes.FRAMENUM, { names = frametype.REQUEST })
define("reply_in", "reply in frame", ftypes.FRAMENUM, { names = frametype.RESPONSE })
define("time", "time", ftypes.RELATIVE_TIME, { about = "from the request to its reply" })
define("batch_in", "batch in frame", ftypes.FRAMENUM, { names = frametype.REQUEST })
define("data_of", "data of the request in frame", ftypes.FRAMENUM)
define("read_in", "read request in frame", ftypes.FRAMENUM, { names = frametype.REQUEST })
define("response_in", "read response in frame", ftypes.FRAMENUM, { names = frametype.RESPONSE })
define("file", "file", ftypes.STRING, { about = "the path by which the handle was opened" })

do
    local fields = {}
    for _, field in pairs(F) do
        fields[#fields + 1] = field
    end
    dafs.fields = fields
end

-- Numbers as text -----------------------------------------------------------------------------------------------------

-- 4096 is "4,096".
local function grouped(number)
    local text = type(number) == "number" and string.format("%.0f", number) or tostring(number)
    local reversed = text:reverse():gsub("(%d%d%d)", "%1,")
    return (reversed:reverse():gsub("^,", ""))
end

-- 65536 is "64 KiB", 1000 is "1,000 bytes".
local function size_text(number)
    for power, unit in ipairs({ "GiB", "MiB", "KiB" }) do
        local bytes = 2 ^ (40 - 10 * power)
        if number >= bytes and number % bytes == 0 then
            return grouped(number / bytes) .. " " .. unit
        end
    end
    return grouped(number) .. (number == 1 and " byte" or " bytes")
end

local function hexadecimal(number)
    local text = number:tohex():gsub("^0+", "")
    return "0x" .. (text == "" and "0" or text)
end

local function count_text(count, what)
    return grouped(count) .. " " .. what .. (count == 1 and "" or "s")
end

local ALL_BITS = UInt64.new(0xffffffff, 0xffffffff)

local function handle_text(handle)
    if handle == UInt64(0) then
        return "f=none"
    end
    return handle == ALL_BITS and "f=saved" or "f=" .. hexadecimal(handle)
end

local function status_name(status)
    local known = SPEC.statuses[status]
    return known and known[1] or string.format("status 0x%x", status)
end

local function utf8(range)
    return range:string(ENC_UTF_8)
end

-- Wireshark takes no nil for the words of an expert.
local function remark(item, info, text)
    if text then
        item:add_proto_expert_info(info, text)
    else
        item:add_proto_expert_info(info)
    end
end

-- Cursors -------------------------------------------------------------------------------------------------------------

-- What is wrong with the bytes ends the decoding of a part; `guarded` shows it, and says whether all was decoded.
local function fail(info, text)
    error({ info = info, text = text }, 0)
end

local function guarded(item, decode, ...)
    local is_done, problem = pcall(decode, ...)
    if not is_done and type(problem) ~= "table" then
        error(problem, 0)
    elseif not is_done then
        item:add_proto_expert_info(problem.info, problem.text)
    end
    return is_done
end

-- Bytes that are taken from their beginning. Wireshark has no ranges without bytes, so `range` may be nil.
local function new_cursor(range)
    return { range = range, at = 0, length = range and range:len() or 0 }
end

local function part(range, offset, length)
    if range and length > 0 then
        return range(offset, length)
    end
    return nil
end

local function left(cursor)
    return cursor.length - cursor.at
end

local function take(cursor, length, what)
    if left(cursor) < length then
        local there = size_text(left(cursor))
        fail(E.short, string.format("%s: %s wanted, %s there", what, size_text(length), there))
    end
    local range = part(cursor.range, cursor.at, length)
    cursor.at = cursor.at + length
    return range
end

local function add_text(tree, field, range)
    if range then
        return tree:add_packet_field(field, range, ENC_UTF_8)
    end
    return tree:add(field, "")
end

local function take_text(cursor, tree, field, length, what)
    local range = take(cursor, length, what)
    add_text(tree, field, range)
    return range and utf8(range) or ""
end

local function add_data(tree, range, what)
    if range then
        local item = tree:add(F.data, range)
        item:prepend_text(size_text(range:len()) .. (what and " " .. what or "") .. ": ")
    end
end

-- Layouts -------------------------------------------------------------------------------------------------------------

local layout_of

local function is_zero(range)
    return not range:bytes():raw():find("[^%z]")
end

local function add_reserved(tree, range)
    local item = tree:add(F.reserved, range)
    if not is_zero(range) then
        item:add_proto_expert_info(E.reserved)
    end
end

-- What a value is that its table does not allow: in the body of a request it is answered, elsewhere it is a fault of the protocol.
local not_allowed = E.value

local function check_bounds(item, field, value, info)
    local number = type(value) == "number" and value or value:tonumber()
    if (field.min and number < field.min) or (field.max and number > field.max) then
        if field.open then
            item:add_proto_expert_info(E.unknown, "No table names this value; it is ignored")
        else
            local text = string.format("%s is %s", field[3] or field[1], grouped(value))
            item:add_proto_expert_info(info or not_allowed, text .. ", which is not allowed")
        end
    end
end

local function check_flags(item, flags, value)
    local known = 0
    for _, flag in ipairs(flags) do
        known = bit.bor(known, flag[1])
    end
    if bit.band(value, bit.bnot(known)) ~= 0 then
        item:add_proto_expert_info(not_allowed, "A flag is not defined")
    end
end

-- A structure of its own within a layout.
local NESTED = {
    range = { "range", function() return SPEC.tcp.range end },
    result = { "batch_result", function() return SPEC.layouts["results of a batch"] end },
}

local function add_field(tree, prefix, field, range)
    local size, name = field[2], slug(field[3])
    if field.reserved then
        return add_reserved(tree, range)
    end
    if NESTED[name] and size > 8 then
        local inner = NESTED[name]
        return (layout_of(tree:add(F[inner[1]], range), inner[1] .. ".", inner[2](), range, true))
    end
    if not UNSIGNED[size] then
        tree:add(F[prefix .. name], range)
        return
    end
    local item = tree:add_le(F[prefix .. name], range)
    local value = size == 8 and range:le_uint64() or range:le_uint()
    if field.flags then
        for _, bit_field in ipairs(BITS[prefix .. name]) do
            item:add_le(bit_field, range)
        end
        check_flags(item, field.flags, value)
    end
    return value, item
end

-- Adds the fields of a layout; returns their values and items by name.
function layout_of(tree, prefix, layout, range, is_unchecked)
    local values, items = {}, {}
    for _, field in ipairs(layout) do
        local name = slug(field[3])
        local value, item = add_field(tree, prefix, field, range(field[1], field[2]))
        values[name], items[name] = value, item
        if item and not is_unchecked then
            check_bounds(item, field, value)
        end
    end
    return values, items
end

local function layout_size(layout)
    local last = layout[#layout]
    return last[1] + last[2]
end

-- MessagePack ---------------------------------------------------------------------------------------------------------

local decode

-- What follows is in tables, as Lua has at most 200 local names.
local Pack = {}

local function note_length(notes, is_short)
    if not is_short then
        notes[#notes + 1] = E.form
    end
end

-- Numbers of 1, 2, 4 and 8 bytes, by their first byte; with the least that needs so many.
local UNSIGNED_FORMS = { [0xcc] = { 1, 0x80 }, [0xcd] = { 2, 0x100 }, [0xce] = { 4, 0x10000 } }
local SIGNED_FORMS = { [0xd0] = { 1, -32 }, [0xd1] = { 2, -0x80 }, [0xd2] = { 4, -0x8000 } }

function Pack.take_first(cursor, what)
    return take(cursor, 1, what):uint()
end

-- An integer: a number, or of 8 bytes UInt64 or Int64. The second result says what is odd about it.
function Pack.take_integer(cursor, what)
    local first, notes = Pack.take_first(cursor, what), {}
    if first <= 0x7f then
        return first, notes
    elseif first >= 0xe0 then
        return first - 0x100, notes
    elseif UNSIGNED_FORMS[first] then
        local form = UNSIGNED_FORMS[first]
        local value = take(cursor, form[1], what):uint()
        note_length(notes, value >= form[2])
        return value, notes
    elseif SIGNED_FORMS[first] then
        local form = SIGNED_FORMS[first]
        local value = take(cursor, form[1], what):int()
        note_length(notes, value < form[2])
        return value, notes
    elseif first == 0xcf then
        local value = take(cursor, 8, what):uint64()
        note_length(notes, value:higher() > 0)
        return value, notes
    elseif first == 0xd3 then
        local value = take(cursor, 8, what):int64()
        note_length(notes, value < Int64(-0x80000000))
        return value, notes
    end
    fail(E.structure, string.format("%s: 0x%02x is no integer", what, first))
end

-- A length: `fixed` is the lowest byte that holds one in itself (of at most `fixed_max`), `forms` those before longer
-- ones.
function Pack.take_length(cursor, what, fixed, fixed_max, forms)
    local first = Pack.take_first(cursor, what)
    if fixed and first >= fixed and first <= fixed + fixed_max then
        return first - fixed
    end
    for form, size in pairs(forms) do
        if first == form then
            return take(cursor, size, what):uint()
        end
    end
    fail(E.structure, string.format("%s: 0x%02x is no form of it", what, first))
end

function Pack.take_array(cursor, what)
    return Pack.take_length(cursor, what, 0x90, 15, { [0xdc] = 2, [0xdd] = 4 })
end

function Pack.take_string(cursor, what)
    local length = Pack.take_length(cursor, what, 0xa0, 31, { [0xd9] = 1, [0xda] = 2, [0xdb] = 4 })
    local range = take(cursor, length, what)
    return range and utf8(range) or "", length
end

local function since(cursor, start)
    return cursor.range(start, cursor.at - start)
end

function Pack.add_count(cursor, tree, start, count)
    tree:add(F["msgpack.count"], since(cursor, start), count)
end

local function as_ftype(kind, value)
    if kind == "u64" then
        return type(value) == "number" and UInt64(value) or value
    elseif kind == "i64" then
        return type(value) == "number" and Int64(value) or value
    end
    return value
end

function Pack.add_features(item, range, name, value)
    for _, feature in ipairs(SPEC.features) do
        local is_set = value:band(UInt64(feature[1])) ~= UInt64(0)
        item:add(F[name .. "." .. slug(feature[2])], range, is_set)
    end
end

function Pack.add_integer(cursor, tree, kind, name, field)
    local start = cursor.at
    local value, notes = Pack.take_integer(cursor, field[1])
    local max = INTEGERS[kind][2]
    local is_wide = type(value) ~= "number"
    if kind ~= "i64" then
        local is_negative = is_wide and typeof(value) == "Int64" or not is_wide and value < 0
        if is_negative or (max and (is_wide or value > max)) then
            fail(E.structure, string.format("%s: %s is no %s", field[1], tostring(value), kind))
        end
    end
    local item = tree:add(F[name], since(cursor, start), as_ftype(kind, value))
    for _, note in ipairs(notes) do
        item:add_proto_expert_info(note)
    end
    if field[1] == "features" then
        Pack.add_features(item, since(cursor, start), name, as_ftype(kind, value))
    end
    check_bounds(item, field, value)
    return value
end

function Pack.add_bool(cursor, tree, name, field)
    local first = Pack.take_first(cursor, field[1])
    if first ~= 0xc2 and first ~= 0xc3 then
        fail(E.structure, string.format("%s: 0x%02x is no bool", field[1], first))
    end
    tree:add(F[name], cursor.range(cursor.at - 1, 1), first == 0xc3)
    return first == 0xc3
end

function Pack.add_string(cursor, tree, name, field)
    local start = cursor.at
    local text, length = Pack.take_string(cursor, field[1])
    local item = tree:add(F[name], since(cursor, start), text)
    check_bounds(item, field, length, E.limit)
    return text
end

function Pack.add_binary(cursor, tree, name, field)
    local start = cursor.at
    local length = Pack.take_length(cursor, field[1], nil, 0, { [0xc4] = 1, [0xc5] = 2, [0xc6] = 4 })
    local range = take(cursor, length, field[1])
    tree:add(F[name], since(cursor, start), range and range:bytes():tohex(true) or "")
end

-- `bytes[N]` is an array of N numbers, not a binary.
function Pack.add_bytes(cursor, tree, count_wanted, name, field)
    local start = cursor.at
    local count = Pack.take_array(cursor, field[1])
    if count ~= count_wanted then
        fail(E.structure, string.format("%s: %d numbers, not %d", field[1], count, count_wanted))
    end
    local text = {}
    for _ = 1, count do
        local value = Pack.take_integer(cursor, field[1])
        if type(value) ~= "number" or value < 0 or value > 0xff then
            fail(E.structure, string.format("%s: %s is no byte", field[1], tostring(value)))
        end
        text[#text + 1] = string.format("%02x", value)
    end
    local value = table.concat(text)
    tree:add(F[name], since(cursor, start), value)
    return value
end

-- A container, whose length is known when its content was decoded.
function Pack.add_container(cursor, tree, name, title, fill)
    local start = cursor.at
    local range = cursor.range(start, math.max(left(cursor), 1))
    local item = F[name] and tree:add(F[name], range) or tree:add(dafs, range, title)
    local result = fill(item)
    item:set_len(cursor.at - start)
    return result, item
end

function Pack.add_array(cursor, tree, kind, name, field)
    -- Numbers and strings have the name of the field; so the array has only a title.
    local is_structure = SPEC.structures[kind] or (kind:match("^%[") and F[name .. ".string"])
    local start, values = cursor.at, {}
    Pack.add_container(cursor, tree, is_structure and name or "", field[1], function(item)
        local count = Pack.take_array(cursor, field[1])
        Pack.add_count(cursor, item, start, count)
        check_bounds(item, field, count, E.limit)
        for _ = 1, count do
            values[#values + 1] = decode(cursor, item, kind, name, { field[1] })
        end
        item:append_text(": " .. grouped(count))
    end)
    return values
end

-- `[u64, u64]`
function Pack.add_tuple(cursor, tree, kind, name, field)
    local first, second = kind:match("^%[(%w+), (%w+)%]$")
    local start, values = cursor.at, {}
    local is_even = first == second
    Pack.add_container(cursor, tree, is_even and "" or name, field[1], function(item)
        if Pack.take_array(cursor, field[1]) ~= 2 then
            fail(E.structure, field[1] .. ": not two elements")
        end
        Pack.add_count(cursor, item, start, 2)
        for index, inner in ipairs({ first, second }) do
            local inner_name = is_even and name or (name .. "." .. inner)
            values[index] = decode(cursor, item, inner, inner_name, { field[1] })
        end
        item:append_text(string.format(": %s, %s", tostring(values[1]), tostring(values[2])))
    end)
    return values
end

function Pack.add_enumeration(cursor, tree, name, field)
    local start = cursor.at
    local text = Pack.take_string(cursor, field[1])
    for _, known in ipairs(field.names) do
        if known == text then
            tree:add(F[name], since(cursor, start), text)
            return text
        end
    end
    fail(E.structure, string.format("%s: %q is none of its names", field[1], text))
end

-- `Now`, or a map of one pair: `At` and a timestamp.
function Pack.add_set_time(cursor, tree, name, field)
    local start = cursor.at
    local is_map = cursor.range(cursor.at, 1):uint() == 0x81
    if is_map then
        cursor.at = cursor.at + 1
    end
    local text = Pack.take_string(cursor, field[1])
    if text ~= (is_map and "At" or "Now") then
        fail(E.structure, string.format("%s: %q is no time", field[1], text))
    end
    local item = tree:add(F[name], since(cursor, start), text)
    if is_map then
        decode(cursor, item, "Timestamp", "", { "Timestamp" })
    end
end

local function time_text(values)
    local seconds = values.seconds
    if seconds and type(seconds) ~= "number" then
        seconds = seconds:tonumber()
    end
    -- Years of four digits, and what the C library takes.
    if seconds and seconds > -6e10 and seconds < 2.5e11 then
        return os.date("!%Y-%m-%d %H:%M:%S", seconds) .. string.format(".%09d UTC", values.nanoseconds or 0)
    end
    return ""
end

function Pack.add_fields(cursor, item, kind, values)
    local structure = SPEC.structures[kind]
    local start = cursor.at
    local count = Pack.take_array(cursor, kind)
    Pack.add_count(cursor, item, start, count)
    local least = 0
    for index, field in ipairs(structure) do
        least = field.absent and least or index
    end
    if count < least or count > #structure then
        fail(E.structure, string.format("%s: %s, not %d", kind, count_text(count, "field"), #structure))
    end
    for index = 1, count do
        local field = structure[index]
        values[field[1]] = decode(cursor, item, field[2], structure_prefix(kind) .. field[1], field)
    end
end

function Pack.add_structure(cursor, tree, kind, name, title)
    local values = {}
    local _, item = Pack.add_container(cursor, tree, name, title, function(item)
        Pack.add_fields(cursor, item, kind, values)
    end)
    if kind == "Timestamp" then
        item:append_text(": " .. time_text(values))
    elseif kind == "SlotReport" then
        local slot, sequence = tostring(values.slot), tostring(values.sequence)
        item:append_text(string.format(": slot %s, sequence %s", slot, sequence))
    end
    return values
end

function Pack.add_nil(cursor, tree, field)
    local item = tree:add(F["msgpack.nil"], cursor.range(cursor.at, 1))
    item:set_text(field[1] .. ": nil")
    cursor.at = cursor.at + 1
end

-- Decodes a value of a type as `SPEC.structures` writes it. `field` has its title and what is allowed.
function decode(cursor, tree, kind, name, field)
    if left(cursor) == 0 then
        fail(E.structure, field[1] .. " is missing")
    end
    local optional, elements = kind:match("^(.*)%?$"), kind:match("^(.*)%[%]$")
    local bytes = kind:match("^bytes%[(%d+)%]$")
    if optional then
        if cursor.range(cursor.at, 1):uint() == 0xc0 then
            return Pack.add_nil(cursor, tree, field)
        end
        return decode(cursor, tree, optional, name, field)
    elseif bytes then
        return Pack.add_bytes(cursor, tree, tonumber(bytes), name, field)
    elseif elements then
        return Pack.add_array(cursor, tree, elements, name, field)
    elseif kind:match("^%[") then
        return Pack.add_tuple(cursor, tree, kind, name, field)
    elseif INTEGERS[kind] then
        return Pack.add_integer(cursor, tree, kind, name, field)
    elseif kind == "bool" then
        return Pack.add_bool(cursor, tree, name, field)
    elseif kind == "string" then
        return Pack.add_string(cursor, tree, name, field)
    elseif kind == "binary" then
        return Pack.add_binary(cursor, tree, name, field)
    elseif kind == "enumeration" then
        return Pack.add_enumeration(cursor, tree, name, field)
    elseif kind == "SetTime" then
        return Pack.add_set_time(cursor, tree, name, field)
    end
    return Pack.add_structure(cursor, tree, kind, name, field[1])
end

-- Too few bytes for a structure are a fault of the structure.
local function decode_message_pack(cursor, tree, kind, name, title)
    local is_done, result = pcall(decode, cursor, tree, kind, name, { title })
    if not is_done then
        if type(result) == "table" and result.info == E.short then
            result.info = E.structure
        end
        error(result, 0)
    end
    return result
end

-- Payloads ------------------------------------------------------------------------------------------------------------

-- Each takes what its name says, and shows it.
local Take = {}

function Take.count(cursor, tree, field, max, what, info)
    local range = take(cursor, 2, what)
    local length = range:le_uint()
    tree:add_le(field, range)
    if length > max then
        fail(info or E.name, string.format("%s is %s, at most %s", what, grouped(length), grouped(max)))
    end
    return length
end

function Take.ranges(cursor, tree, count, max)
    if count > (max or RANGES_MAX) then
        fail(E.invalid, count_text(count, "range"))
    end
    local ranges, total = {}, UInt64(0)
    for index = 1, count do
        local range = take(cursor, RANGE_SIZE, "range " .. (index - 1))
        local item = tree:add(F.range, range)
        local values = layout_of(item, "range.", SPEC.tcp.range, range, true)
        item:append_text(string.format(
            " %d: %s at %s of %s", index - 1, size_text(values.length:tonumber()), grouped(values.offset),
            hexadecimal(values.key)))
        total = total + values.length
        ranges[index] = values
    end
    return ranges, total
end

function Take.extents(cursor, tree, count)
    if count > LIST_RANGES_MAX then
        fail(E.invalid, count_text(count, "extent"))
    end
    local total = 0
    for index = 1, count do
        local range = take(cursor, EXTENT_SIZE, "extent " .. (index - 1))
        local item = tree:add(F.extent, range)
        local offset, length = range(0, 8):le_uint64(), range(8, 4):le_uint()
        item:add_le(F["extent.offset"], range(0, 8))
        item:add_le(F["extent.length"], range(8, 4))
        item:append_text(string.format(" %d: %s at %s", index - 1, size_text(length), grouped(offset)))
        local last = offset + UInt64(length)
        if last:higher() >= 0x80000000 or last < offset then
            item:add_proto_expert_info(E.invalid, "The extent reaches beyond the largest offset")
        end
        total = total + length
    end
    return total
end

function Take.rest(cursor, tree, what)
    add_data(tree, take(cursor, left(cursor), "data"), what)
end

-- Extents and ranges of a list, and whether they add up.
function Take.list(cursor, tree, list, record)
    local extents = Take.extents(cursor, tree, list.extents)
    local ranges, total = Take.ranges(cursor, tree, list.ranges, LIST_RANGES_MAX)
    if record then
        for _, range in ipairs(ranges) do
            record.ranges[#record.ranges + 1] = range
        end
    end
    if extents ~= list.length then
        fail(E.invalid, string.format(
            "Extents of %s in all, where the request says %s", size_text(extents), size_text(list.length)))
    end
    if list.ranges > 0 and total ~= UInt64(list.length) then
        fail(E.invalid, string.format(
            "Ranges of %s bytes in all, where the request says %s", grouped(total), size_text(list.length)))
    end
end

function Take.operation(cursor, tree, index, record)
    local layout = SPEC.layouts["operations of a batch"]
    local start = cursor.at
    local range = take(cursor, layout_size(layout), "operation " .. index)
    local item = tree:add(F.batch_operation, range)
    local values = layout_of(item, "batch_operation.", layout, range)
    record.operations[#record.operations + 1] = values
    item:append_text(string.format(
        " %d: %s %s %s %s", index, values.kind == 0 and "read" or "write", handle_text(values.handle),
        size_text(values.length), SPEC.methods[values.method] or "by an unknown method"))
    if values.kind == 0 and values.stability ~= 0 then
        item:add_proto_expert_info(E.invalid, "A read has a stability")
    end
    guarded(item, Take.list, cursor, item, values, record)
    item:set_len(cursor.at - start)
end

function Take.operations(m, cursor, tree)
    local record = m.record or { ranges = {}, operations = {} }
    local count = m.body.operations
    if count > SPEC.layouts["batch request"][1].max then
        return
    end
    for index = 0, count - 1 do
        Take.operation(cursor, tree, index, record)
    end
    local data = 0
    for index, operation in ipairs(record.operations) do
        if operation.kind == 1 and operation.method == INLINE then
            data = data + operation.length
            if data <= m.body.data then
                add_data(tree, take(cursor, operation.length, "data"), "of operation " .. (index - 1))
            end
        end
    end
    if data ~= m.body.data then
        tree:add_proto_expert_info(E.invalid, string.format(
            "Inline writes of %s, where the request says %s", size_text(data), size_text(m.body.data)))
        Take.rest(cursor, tree)
    end
end

-- What `value` says depends on what the operation was.
local function explain_result(item, values, operation)
    if values.status ~= 0 then
        item:append_text(": " .. status_name(values.status))
        item:add_proto_expert_info(E.status, "The operation failed: " .. status_name(values.status))
        if values.count ~= 0 or values.value ~= UInt64(0) then
            item:add_proto_expert_info(E.value, "A result that failed has a count or value")
        end
        return
    end
    item:append_text(": " .. size_text(values.count))
    if operation and operation.kind == 0 then
        local is_end = values.value ~= ALL_BITS
        item:append_text(is_end and (", the file ended at " .. grouped(values.value)) or "")
    elseif operation then
        item:append_text(", verifier " .. hexadecimal(values.value))
    end
end

function Take.result(cursor, tree, index, operation)
    local range = take(cursor, RESULT_SIZE, "result " .. index)
    local item = tree:add(F.batch_result, range)
    local values = layout_of(item, "batch_result.", SPEC.layouts["results of a batch"], range)
    item:append_text(" " .. index)
    explain_result(item, values, operation)
    return values
end

function Take.results(m, cursor, tree)
    local operations = m.request and m.request.operations or {}
    if m.body.operations * RESULT_SIZE + m.body.data ~= left(cursor) then
        fail(E.value, string.format(
            "%s and %s of data, in a payload of %s", count_text(m.body.operations, "result"),
            size_text(m.body.data), size_text(left(cursor))))
    end
    local counts = {}
    for index = 1, m.body.operations do
        local operation = operations[index]
        local values = Take.result(cursor, tree, index - 1, operation)
        if operation and operation.kind == 0 and operation.method == INLINE then
            counts[#counts + 1] = { index - 1, values.count }
        end
    end
    for _, read in ipairs(counts) do
        if read[2] <= left(cursor) then
            add_data(tree, take(cursor, read[2], "data"), "of operation " .. read[1])
        end
    end
    -- All of it, where the request is not in the capture.
    Take.rest(cursor, tree, "of inline reads")
end

function Take.noticed(m, cursor, tree)
    local layout = SPEC.layouts["noticed results"]
    local size = layout_size(layout)
    if m.body.results * size ~= left(cursor) then
        fail(E.value, string.format(
            "%s in a payload of %s", count_text(m.body.results, "result"), size_text(left(cursor))))
    end
    local operations = m.batch and m.batch.operations or {}
    for _ = 1, m.body.results do
        local range = take(cursor, size, "noticed result")
        local item = tree:add(F.noticed_result, range)
        local values = layout_of(item, "noticed_result.", layout, range)
        item:append_text(" of operation " .. grouped(values.place))
        explain_result(item, values.result, operations[values.place + 1])
    end
end

function Take.entry(cursor, tree)
    local start = cursor.at
    local cookie = take(cursor, 8, "cookie")
    local item = tree:add(F.directory_entry, cookie)
    item:add_le(F["directory_entry.cookie"], cookie)
    local length = Take.count(cursor, item, F["directory_entry.name_length"], 255, "name length", E.limit)
    if length == 0 then
        fail(E.value, "The name of an entry is empty")
    end
    item:append_text(": " .. take_text(cursor, item, F["directory_entry.name"], length, "name"))
    local size = Take.count(cursor, item, F["directory_entry.attributes_length"], 512, "attributes length", E.limit)
    if size > 0 then
        local attributes = new_cursor(take(cursor, size, "attributes"))
        decode_message_pack(attributes, item, "Attributes", "", "Attributes")
        if left(attributes) > 0 then
            fail(E.left, "Bytes stand behind the attributes of an entry")
        end
    end
    item:set_len(cursor.at - start)
end

function Take.entries(_, cursor, tree)
    local count = 0
    while left(cursor) > 0 do
        Take.entry(cursor, tree)
        count = count + 1
    end
    return count
end

function Take.token(_, cursor, tree)
    tree:add(F.token, take(cursor, TOKEN_SIZE, "token"))
end

function Take.words(_, cursor, tree)
    if left(cursor) > 512 then
        tree:add_proto_expert_info(E.limit, "More than 512 bytes of words")
    end
    return take_text(cursor, tree, F.words, left(cursor), "words")
end

function Take.path(m, cursor, tree)
    m.path = take_text(cursor, tree, F.path, left(cursor), "path")
end

function Take.path_and_attributes(m, cursor, tree)
    local length = Take.count(cursor, tree, F["names.path_length"], 4096, "path length")
    m.path = take_text(cursor, tree, F.path, length, "path")
    decode_message_pack(cursor, tree, "SetAttributes", "", "SetAttributes")
end

function Take.two_names(m, cursor, tree)
    local length = Take.count(cursor, tree, F["names.length_of_the_first"], 4096, "length of the first")
    local is_link = m.name == "Symlink"
    local first = take_text(cursor, tree, is_link and F.target or F.path, length, "first path")
    length = Take.count(cursor, tree, F["names.second_length"], 4096, "length of the second")
    local second = take_text(cursor, tree, is_link and F.path or F.second_path, length, "second path")
    m.path, m.second_path = first, second
end

function Take.attribute_names(m, cursor, tree)
    local length = Take.count(cursor, tree, F["names.path_length"], 4096, "path length")
    m.path = take_text(cursor, tree, F.path, length, "path")
    length = Take.count(cursor, tree, F["names.name_length"], 255, "name length")
    m.second_path = take_text(cursor, tree, F["xattr.name"], length, "name")
    if (length == 0) ~= (m.name == "XattrList") then
        tree:add_proto_expert_info(E.invalid, "Only XattrList names no attribute")
    end
    if m.name == "XattrWrite" and left(cursor) > 0 then
        tree:add(F["xattr.value"], take(cursor, left(cursor), "value"))
    end
end

function Take.xattr_names(_, cursor, tree)
    while left(cursor) > 0 do
        local rest = cursor.range(cursor.at, left(cursor))
        local length = rest:bytes():raw():find("\0", 1, true)
        if not length then
            fail(E.short, "The last name has no zero byte behind it")
        end
        local name = length > 1 and utf8(rest(0, length - 1)) or ""
        tree:add(F["xattr.name"], take(cursor, length, "name"), name)
    end
end

function Take.written(m, cursor, tree)
    if m.body.method == INLINE then
        if left(cursor) ~= m.body.length then
            local info = left(cursor) < m.body.length and E.short or E.left
            tree:add_proto_expert_info(info, string.format(
                "Data of %s, where the request says %s", size_text(left(cursor)), size_text(m.body.length)))
        end
        Take.rest(cursor, tree)
    elseif m.is_eager_frame then
        Take.rest(cursor, tree, "in an eager buffer")
    elseif m.body.ranges > 1 then
        m.record.ranges = Take.ranges(cursor, tree, m.body.ranges)
    end
end

function Take.more_ranges(m, cursor, tree)
    if m.body.ranges > 1 then
        m.record.ranges = Take.ranges(cursor, tree, m.body.ranges)
    end
end

function Take.list_request(m, cursor, tree)
    if m.body.extents * EXTENT_SIZE + m.body.ranges * RANGE_SIZE > left(cursor) then
        tree:add_proto_expert_info(E.invalid, "The payload has fewer extents or ranges than the request says")
        return Take.rest(cursor, tree)
    end
    guarded(tree, Take.list, cursor, tree, m.body, m.record)
    if m.name == "WriteList" and m.body.method == INLINE then
        Take.rest(cursor, tree)
    end
end

-- Ranges of a request of a view, and the data of an inline write.
function Take.view_request(m, cursor, tree)
    local body = m.body
    local data = m.name == "WriteView" and body.method == INLINE and body.length or 0
    if body.ranges > LIST_RANGES_MAX or body.ranges * RANGE_SIZE + data ~= left(cursor) then
        tree:add_proto_expert_info(E.invalid, "The payload is not what the request says")
        return Take.rest(cursor, tree)
    end
    local ranges, total = Take.ranges(cursor, tree, body.ranges, LIST_RANGES_MAX)
    m.record.ranges = ranges
    if body.ranges > 0 and total ~= UInt64(body.length) then
        tree:add_proto_expert_info(E.invalid, string.format(
            "Ranges of %s bytes in all, where the request says %s", grouped(total), size_text(body.length)))
    end
    Take.rest(cursor, tree)
end

-- How a list was moved, behind its data. Where the request is not in the capture, the lengths say whether it is there.
function Take.explanation(m, cursor, tree)
    local layout, list = SPEC.layouts.explanation, m.request and m.request.list
    local size = layout_size(layout)
    local data = left(cursor) - size
    local is_read = m.name == "ReadList" or m.name == "ReadView"
    local is_there = data == 0 and not (is_read and m.body.count == size) or is_read and data == m.body.count
    if list then
        is_there = list.is_explained and data == (is_read and list.method == INLINE and m.body.count or 0)
    end
    if is_read then
        add_data(tree, take(cursor, is_there and data or left(cursor), "data"))
    end
    if is_there then
        local range = take(cursor, size, "explanation")
        local item = tree:add(F.explanation, range)
        local told = layout_of(item, "explanation.", layout, range)
        item:append_text(string.format(
            ": %s, %s, %s", count_text(told.parts, "part"), count_text(told.calls, "call"),
            count_text(told.windows, "window")))
        if told.copied > told.parts or told.waited > told.calls + told.windows then
            item:add_proto_expert_info(E.value, "More is copied or waited for than there is")
        end
    end
end

-- Fields of a node or of one of its entries; `from` is the offset of the first byte of the range.
function Take.node_fields(tree, prefix, fields, range, from)
    local values = {}
    for _, field in ipairs(fields) do
        local piece = range(field[1] - from, field[2])
        if field.reserved then
            add_reserved(tree, piece)
        else
            local item = tree:add_le(F[prefix .. field[3]], piece)
            local value = field[2] == 8 and piece:le_uint64() or piece:le_uint()
            values[field[3]] = value
            if not field.signed then
                check_bounds(item, field, value, E.invalid)
            end
        end
    end
    return values
end

-- What is wrong with the dimensions of an array; nothing, where nothing is.
local function dimensions_fault(kind, node, entries)
    if #entries == 0 or #entries > 32 then
        return count_text(#entries, "dimension")
    end
    local grid = UInt64(1)
    for index, entry in ipairs(entries) do
        local rest = entry.subsize and entry.size - entry.subsize
        if kind == "subarray" and (entry.subsize > entry.size or entry.start > rest) then
            return string.format("Dimension %d: the part reaches beyond the array", index - 1)
        elseif kind == "darray" then
            local processes, zero = UInt64(entry.grid_processes), UInt64(0)
            local covered = entry.block * processes
            grid = grid * processes
            if entry.distribution == 0 and (entry.grid_processes ~= 1 or entry.block ~= zero) then
                return string.format("Dimension %d is not dealt out, and has blocks or processes", index - 1)
            elseif entry.distribution == 1 and entry.block ~= zero and covered < entry.size then
                return string.format("Dimension %d: blocks do not cover it", index - 1)
            end
        end
    end
    if kind == "darray" and (grid ~= UInt64(node.processes) or node.process >= node.processes) then
        return string.format(
            "Process %d of %d in a grid of %s", node.process, node.processes, grouped(grid))
    end
    return nil
end

local ARRAYS = { subarray = true, darray = true }
local OF_NOTHING = { bytes = true, struct = true }

local function check_node(item, kind, number, values, has_list)
    local name = kind[1]
    if values.order ~= 0 and not ARRAYS[name] then
        item:add_proto_expert_info(E.invalid, "Only an array has an order")
    end
    if OF_NOTHING[name] and values.of ~= 0 or not OF_NOTHING[name] and values.of >= number then
        item:add_proto_expert_info(E.invalid, string.format("Node %d is made of node %d", number, values.of))
    end
    if values.entries > 0 and not has_list then
        item:add_proto_expert_info(E.invalid, "A node of this kind has no entries")
        values.entries = 0
    end
end

-- A node: its head, the fields of its kind, and its entries.
function Take.node(cursor, tree, number)
    local layout = SPEC.layouts["node of a view"]
    local start, head_size = cursor.at, layout_size(layout)
    local range = take(cursor, head_size, "node " .. number)
    local item = tree:add(F.view_node, range)
    local values = layout_of(item, "view_node.", layout, range)
    local kind = SPEC.nodes[values.kind]
    if not kind then
        fail(E.invalid, string.format("Node %d is of kind %d", number, values.kind))
    end
    item:append_text(string.format(" %d: %s", number, kind[1]))
    check_node(item, kind, number, values, #kind.entries > 0)
    local node = {}
    if #kind.fields > 0 then
        local fields = take(cursor, layout_size(kind.fields) - head_size, "fields of node " .. number)
        node = Take.node_fields(item, "view_node.", kind.fields, fields, head_size)
    end
    local entries, size = {}, #kind.entries > 0 and layout_size(kind.entries) or 0
    if values.entries * size > left(cursor) then
        fail(E.invalid, string.format("Node %d: not all of its %s entries are there", number, grouped(values.entries)))
    end
    for index = 1, values.entries do
        local bytes = take(cursor, size, "entry " .. (index - 1))
        local entry = item:add(F.view_entry, bytes)
        entry:append_text(" " .. (index - 1))
        entries[index] = Take.node_fields(entry, "view_entry.", kind.entries, bytes, 0)
        if entries[index].of and entries[index].of >= number then
            entry:add_proto_expert_info(E.invalid, "A block is made of a node that does not stand before it")
        end
    end
    local fault = ARRAYS[kind[1]] and dimensions_fault(kind[1], node, entries)
    if fault then
        item:add_proto_expert_info(E.invalid, fault)
    end
    item:set_len(cursor.at - start)
end

function Take.nodes(cursor, tree)
    local layout = SPEC.layouts["description of a view"]
    local size = layout_size(layout)
    if left(cursor) < size then
        fail(E.invalid, "A description of " .. size_text(left(cursor)))
    end
    local values = layout_of(tree, "view_description.", layout, take(cursor, size, "nodes"), true)
    if values.nodes == 0 or values.nodes > 4096 then
        fail(E.invalid, count_text(values.nodes, "node"))
    end
    for number = 0, values.nodes - 1 do
        Take.node(cursor, tree, number)
    end
    if left(cursor) > 0 then
        fail(E.invalid, "Bytes stand behind the last node")
    end
end

-- A description, where all of it is here; else a part.
function Take.description(m, cursor, tree)
    local body, length = m.body, left(cursor)
    if body.description_length == 0 or body.description_length > 2097152 then
        tree:add_proto_expert_info(E.invalid, "A description of " .. size_text(body.description_length))
    elseif length == 0 or body.offset + length > body.description_length then
        tree:add_proto_expert_info(E.invalid, string.format(
            "A part of %s at %s", size_text(length), grouped(body.offset)))
    elseif length == body.description_length then
        return Take.nodes(cursor, tree)
    end
    local range = take(cursor, length, "part")
    if range then
        tree:add(F.view_part, range)
    end
end

function Take.buffers(m, cursor, tree)
    Take.ranges(cursor, tree, m.body.count)
end

local function add_bytes_as(field)
    return function(_, cursor, tree)
        local range = take(cursor, left(cursor), "bytes")
        if range then
            tree:add(field, range)
        end
    end
end

local function message_pack(kind, name, title)
    return function(m, cursor, tree)
        m.value = decode_message_pack(cursor, tree, kind, name, title)
    end
end

-- How each payload is decoded, by the words of the table of operations.
local PAYLOADS = {
    ["ranges"] = Take.buffers,
    ["ranges when more than one"] = Take.more_ranges,
    ["data when inline"] = function(_, cursor, tree) Take.rest(cursor, tree) end,
    ["data when inline, explanation when asked"] = Take.explanation,
    ["explanation when asked"] = Take.explanation,
    ["data when inline, ranges when more than one"] = Take.written,
    ["as of Write"] = Take.written,
    ["lists"] = Take.list_request,
    ["lists, then data when inline"] = Take.list_request,
    ["ranges when direct"] = Take.view_request,
    ["ranges when direct, data when inline"] = Take.view_request,
    ["part of a description"] = Take.description,
    ["operations, then data of inline writes"] = Take.operations,
    ["results, then data of inline reads"] = Take.results,
    ["noticed results"] = Take.noticed,
    ["directory entries when inline"] = Take.entries,
    ["export name"] = function(m, cursor, tree)
        m.path = take_text(cursor, tree, F.export, left(cursor), "export name")
    end,
    ["path"] = Take.path,
    ["path and attributes"] = Take.path_and_attributes,
    ["two names"] = Take.two_names,
    ["attribute names"] = Take.attribute_names,
    ["the target's bytes"] = function(m, cursor, tree)
        m.path = take_text(cursor, tree, F.target, left(cursor), "target")
    end,
    ["the value's bytes"] = add_bytes_as(F["xattr.value"]),
    ["names, each ended by a zero byte"] = Take.xattr_names,
    ["token"] = Take.token,
    ["words"] = Take.words,
    ["Names of exports"] = message_pack("string[]", "export", "exports"),
}

for name in pairs(SPEC.structures) do
    PAYLOADS[name] = message_pack(name, "", name)
end

-- A new row of the table of operations needs a function here.
for _, opcode in pairs(SPEC.opcodes) do
    for _, side in pairs({ opcode.request or {}, opcode.reply or {} }) do
        assert(not side.payload or PAYLOADS[side.payload], "no decoder of " .. tostring(side.payload))
        assert(not side.body or SPEC.layouts[side.body], "no layout of " .. tostring(side.body))
    end
end

-- Checks of bodies ----------------------------------------------------------------------------------------------------

local function check_transfer(m, problem)
    local body = m.body
    local is_direct = body.method == DIRECT
    if is_direct and body.ranges == 0 then
        problem(E.value, "A direct transfer has no range")
    elseif not is_direct and body.ranges > 0 then
        problem(E.value, "A transfer that is not direct has ranges")
    elseif is_direct and body.ranges == 1 then
        m.record.ranges = { body.range }
        if body.range.length ~= UInt64(body.length) then
            problem(E.invalid, "The range is not as long as the transfer")
        end
    end
    if m.name == "Append" and body.offset ~= UInt64(0) then
        problem(E.value, "An append has an offset")
    end
    local zero, range = UInt64(0), body.range
    local names_buffer = body.method == EAGER or body.method == CLIENT_INITIATED
    local is_empty = range.offset == zero and range.length == zero and (names_buffer or range.key == zero)
    if not (is_direct and body.ranges == 1) and not is_empty then
        problem(E.value, "Bytes stand where the only range of a direct transfer does")
    end
end

local function check_batch(m, problem)
    local body = m.body
    if bit.band(body.flags, 1) == 0 and (body.window_us > 0 or body.completions > 0) then
        problem(E.value, "Hints without NOTIFY")
    end
end

local MODES_MAX = { XattrWrite = 2, AccessCheck = 7, Mkdir = 4095 }

local FOLLOWS = { Lookup = true, Getattr = true, Setattr = true, Statfs = true, AccessCheck = true }

local function check_name(m, problem)
    if m.body.follow ~= 0 and not FOLLOWS[m.name] then
        problem(E.value, m.name .. " follows no link at the end of its path")
    end
    if m.body.mode and m.body.mode > (MODES_MAX[m.name] or 0) then
        problem(E.value, "The mode is not allowed for " .. m.name)
    end
end

local function check_list(m, problem)
    local is_direct = m.body.method == DIRECT
    if is_direct ~= (m.body.ranges > 0) then
        local text = is_direct and "A direct list has no range" or "A list that is not direct has ranges"
        problem(E.invalid, text)
    end
    if (m.name == "ReadList" or m.name == "ReadView") and m.body.stability ~= 0 then
        problem(E.value, "A read has a stability")
    end
    m.record.list = { method = m.body.method, is_explained = bit.band(m.body.flags, 1) ~= 0 }
end

local function check_verify(m, problem)
    local body, zero = m.body, UInt64(0)
    local compared = {
        { 0x1, body.change },
        { 0x2, body.size },
        { 0x4, body.mtime_seconds },
        { 0x4, UInt64(body.mtime_nanoseconds) },
        { 0x8, body.file_id },
        { 0x8, body.generation },
    }
    for _, pair in ipairs(compared) do
        if bit.band(body.mask, pair[1]) == 0 and pair[2] ~= zero then
            problem(E.value, "An attribute stands here that is not compared")
        end
    end
    if body.mask == 0 then
        problem(E.value, "Nothing is compared")
    end
    if body.mtime_nanoseconds >= 1000000000 then
        problem(E.value, "A second has less nanoseconds")
    end
end

local function check_lock_range(m, problem)
    if m.body.offset + m.body.length < m.body.offset then
        problem(E.value, "The range ends beyond the offsets that there are")
    end
end

-- Flags of a lock, and those that they need beside them.
local LOCK_FLAGS_NEEDED = { [0x08] = 0x01, [0x40] = 0x20, [0x80] = 0x04 }

local function check_lock(m, problem)
    check_lock_range(m, problem)
    for flag, needed in pairs(LOCK_FLAGS_NEEDED) do
        if bit.band(m.body.flags, flag) ~= 0 and bit.band(m.body.flags, needed) == 0 then
            problem(E.value, "A flag without the one that it needs")
        end
    end
    if bit.band(m.body.flags, 0x20) ~= 0 and m.body.kind ~= 2 then
        problem(E.value, "A shared lock that is persistent")
    end
end

local CHECKS = {
    ["read request"] = check_transfer,
    ["write request"] = check_transfer,
    ["batch request"] = check_batch,
    ["name request"] = check_name,
    ["list request"] = check_list,
    ["view request"] = check_list,
    ["verify request"] = check_verify,
    ["range request"] = function(m, problem)
        if m.name == "Truncate" and m.body.length ~= UInt64(0) then
            problem(E.value, "A truncation has a length")
        end
    end,
    ["lock request"] = check_lock,
    ["unlock request"] = check_lock_range,
    ["lock turn"] = check_lock_range,
    ["lock test reply"] = function(m, problem)
        if (m.body.conflicts == 0) ~= (m.body.kind == 0) then
            problem(E.value, "A kind that does not go with whether there is a conflict")
        end
    end,
    ["list read reply"] = function(m, problem)
        if m.body.end_of_file == 0 and m.body["end"] ~= UInt64(0) then
            problem(E.value, "An end without the end of the file")
        end
    end,
    ["readdir request"] = function(m)
        if m.body.range.length > UInt64(0) then
            m.record.ranges = { m.body.range }
        end
    end,
}

-- What a message is about, for the column -----------------------------------------------------------------------------

local function quoted(path)
    return '"' .. (path or "") .. '"'
end

local function transfer_text(m)
    local method = SPEC.methods[m.body.method] or "method " .. m.body.method
    local place = m.name == "Append" and "" or (" at " .. grouped(m.body.offset))
    return size_text(m.body.length) .. place .. " " .. method
end

local function list_text(m)
    local method = SPEC.methods[m.body.method] or "method " .. m.body.method
    local extents = count_text(m.body.extents, "extent")
    return string.format("%s in %s %s", size_text(m.body.length), extents, method)
end

local function view_text(m)
    local method = SPEC.methods[m.body.method] or "method " .. m.body.method
    return string.format(
        "%s at place %s of view %d %s", size_text(m.body.length), grouped(m.body.place), m.body.view, method)
end

local function range_text(m)
    if m.body.length == UInt64(0) then
        return "from " .. grouped(m.body.offset)
    end
    return string.format("%s at %s", size_text(m.body.length:tonumber()), grouped(m.body.offset))
end

local function lock_text(m)
    return (m.body.kind == 2 and "exclusive " or "shared ") .. range_text(m)
end

local function count_reply(m)
    return size_text(m.body.count) .. (m.body.end_of_file == 1 and ", end of file" or "")
end

local function flags_text(value, flags)
    local names = {}
    for _, flag in ipairs(flags) do
        if bit.band(value, flag[1]) ~= 0 then
            names[#names + 1] = flag[2]
        end
    end
    return table.concat(names, "|")
end

-- Of requests, by the name of the operation; others say their path, where they have one.
local REQUEST_TEXTS = {
    Hello = function(m) return quoted(m.value and m.value.client_name) end,
    Open = function(m)
        return quoted(m.path) .. " " .. flags_text(m.body.flags, SPEC.layouts["open request"][1].flags)
    end,
    Read = transfer_text,
    Write = transfer_text,
    Append = transfer_text,
    ReadList = list_text,
    WriteList = list_text,
    ReadView = view_text,
    WriteView = view_text,
    ViewSet = function(m) return string.format("view %d of %s", m.body.view, size_text(m.body.description_length)) end,
    ViewDrop = function(m) return "view " .. m.body.view end,
    Commit = range_text,
    Allocate = range_text,
    Punch = range_text,
    Hint = range_text,
    Lock = lock_text,
    LockTest = lock_text,
    Unlock = range_text,
    CopyRange = function(m)
        local what = m.body.length == UInt64(0) and "all" or size_text(m.body.length:tonumber())
        local source = string.format("%s at %s", handle_text(m.body.source), grouped(m.body.source_offset))
        return string.format("%s of %s to %s", what, source, grouped(m.body.offset))
    end,
    Verify = function(m)
        local names = flags_text(m.body.mask, SPEC.layouts["verify request"][1].flags)
        local differ = bit.band(m.body.flags, 1) ~= 0 and "differ in " or "have "
        return quoted(m.path) .. " to " .. differ .. names
    end,
    Truncate = function(m) return "to " .. size_text(m.body.offset:tonumber()) end,
    Seek = function(m)
        return string.format("%s from %s", m.body.what == 0 and "data" or "hole", grouped(m.body.offset))
    end,
    Batch = function(m) return count_text(m.body.operations, "operation") end,
    Readdir = function(m)
        return string.format("%s after %s", size_text(m.body.length), grouped(m.body.cookie))
    end,
    EagerBuffers = function(m)
        return string.format("%s of %s", count_text(m.body.count, "buffer"), size_text(m.body.size))
    end,
    Notice = function(m) return (m.body.kind == 1 and "draining" or "protocol fault") end,
    CreditTarget = function(m) return count_text(m.header.credits, "credit") end,
    LockTurn = range_text,
    BatchDone = function(m)
        return string.format("%s of slot %d", count_text(m.body.results, "result"), m.body.slot)
    end,
}

local REPLY_TEXTS = {
    Hello = function(m) return quoted(m.value and m.value.server_name) end,
    Read = count_reply,
    ReadList = count_reply,
    ReadView = count_reply,
    Write = count_reply,
    WriteList = count_reply,
    WriteView = count_reply,
    Append = function(m)
        return string.format("%s at %s", size_text(m.body.count), grouped(m.body.offset))
    end,
    Readdir = function(m) return size_text(m.body.count) .. (m.body["end"] == 1 and ", end" or "") end,
    Batch = function(m) return count_text(m.body.operations, "result") end,
    Seek = function(m) return "at " .. grouped(m.body.offset) end,
    Readlink = function(m) return quoted(m.path) end,
    EagerBuffers = REQUEST_TEXTS.EagerBuffers,
}

local function says(text_of, m)
    -- A body that was cut has no values to tell.
    local is_done, text = pcall(text_of, m)
    return is_done and " " .. text or ""
end

local function request_text(m)
    local text = m.is_callback and m.name or (m.name .. " " .. handle_text(m.header.handle))
    text = text:gsub(" f=none$", "")
    if REQUEST_TEXTS[m.name] then
        return text .. says(REQUEST_TEXTS[m.name], m)
    end
    if m.path and m.path ~= "" then
        text = text .. " " .. quoted(m.path)
    end
    if m.second_path and m.second_path ~= "" then
        text = text .. " " .. quoted(m.second_path)
    end
    return text
end

local function reply_text(m)
    local text = m.name .. " reply"
    if m.header.status ~= 0 then
        return text .. " " .. status_name(m.header.status)
    end
    if m.header.handle ~= UInt64(0) then
        text = text .. " " .. handle_text(m.header.handle)
    end
    return REPLY_TEXTS[m.name] and (text .. says(REPLY_TEXTS[m.name], m)) or text
end

-- Messages ------------------------------------------------------------------------------------------------------------

-- Wireshark dissects a packet again whenever it is looked at. What depends on other packets is found the first time, and
-- kept in `stream.found` by what the packet says of itself.
local function find_once(context, key, find)
    key = context.number .. ":" .. key
    if not context.pinfo.visited and context.stream.found[key] == nil then
        context.stream.found[key] = find() or false
    end
    return context.stream.found[key] or nil
end

local function request_key(header)
    return string.format("%d:%d:%d", header.slot, header.sequence, header.opcode)
end

-- What is known of a request, also for those who see its reply, its data or its notices.
local function record_of_request(context, header)
    local stream = context.stream
    return find_once(context, "request " .. request_key(header), function()
        local record = { frame = context.number, time = context.pinfo.rel_ts, opcode = header.opcode }
        stream.pending[request_key(header)] = record
        stream.transfers[#stream.transfers + 1] = record
        return record
    end) or {}
end

local function record_of_reply(context, header)
    local stream = context.stream
    return find_once(context, "reply " .. request_key(header), function()
        local record = stream.pending[request_key(header)]
        if record then
            stream.pending[request_key(header)] = nil
            record.reply, record.reply_time = context.number, context.pinfo.rel_ts
            for index = #stream.transfers, 1, -1 do
                if stream.transfers[index] == record then
                    table.remove(stream.transfers, index)
                end
            end
        end
        return record
    end)
end

local function batch_of_notice(context, body)
    local key = string.format("%d:%d:%d", body.slot, body.sequence, NUMBERS.Batch)
    return find_once(context, "batch " .. key, function() return context.stream.pending[key] end)
end

local function nstime(seconds)
    local whole = math.floor(seconds)
    return NSTime.new(whole, math.floor((seconds - whole) * 1e9 + 0.5))
end

local function add_found(tree, field, value)
    tree:add(field, value):set_generated()
end

local function add_match(m, tree)
    if m.is_reply and m.request then
        add_found(tree, F.request_in, m.request.frame)
        add_found(tree, F.time, nstime(m.request.reply_time - m.request.time))
    elseif m.record and m.record.reply then
        add_found(tree, F.reply_in, m.record.reply)
    end
    local file = m.is_reply and m.request and m.request.file or m.record and m.record.file
    if file then
        add_found(tree, F.file, file)
    end
end

-- By what name a handle was opened, as far as the capture shows it.
local function note_file(context, m)
    local names = context.stream.files
    local handle = m.header.handle:tohex()
    if context.pinfo.visited then
        return
    end
    if m.is_request then
        m.record.file, m.record.path = names[handle], m.path
    elseif m.is_reply and m.request and m.header.handle ~= UInt64(0) then
        names[handle] = m.request.path or m.request.file
    end
end

local function check_header(m, items, head_length, payload_length)
    local header = m.header
    local function problem(name, info, text)
        remark(items[name], info, text)
    end
    if header.head_len ~= head_length then
        problem("head_len", E.value, string.format("The head has %d bytes", head_length))
    end
    if header.payload_len ~= payload_length then
        problem("payload_len", E.value, string.format("The payload has %d bytes", payload_length))
    end
    if header.credits == 0 then
        problem("credits", E.value, "No credits")
    end
    if not m.is_reply and header.status ~= 0 then
        problem("status", E.value, "Only a reply has a status")
    end
    if m.is_callback ~= (header.opcode >= 0x8000) or (m.is_callback and m.is_reply) then
        problem("flags", E.value, "The flags do not fit the opcode")
    end
    if not m.known then
        problem("opcode", E.opcode)
    end
    if not m.is_request and bit.band(header.flags, bit.bnot(bit.bor(REPLY, CALLBACK))) ~= 0 then
        problem("flags", E.value, "The flag is for requests")
    end
    if not m.is_request and header.deadline_ms ~= 0 then
        problem("deadline_ms", E.value, "Only a request has a deadline")
    end
    if header.status ~= 0 and m.is_reply then
        local known = SPEC.statuses[header.status]
        items.status:append_text(known and (": " .. known[2]) or "")
        problem("status", E.status, "The request failed: " .. status_name(header.status))
    end
    if bit.band(header.flags, 0x20) ~= 0 then
        problem("flags", E.again)
    end
    if header.handle == ALL_BITS then
        items.handle:append_text(": the chain's saved handle")
    end
end

local function add_rest(tree, range, info)
    if range then
        tree:add(F.rest, range):add_proto_expert_info(info or E.left)
    end
end

local function add_body(m, tree, range)
    local name = m.side.body
    local layout = name and SPEC.layouts[name]
    local length = range and range:len() or 0
    local size = layout and layout_size(layout) or 0
    if length < size then
        add_rest(tree, range, E.lost)
        return fail(E.short, string.format("The body has %d bytes, not %d", length, size))
    end
    if layout then
        local item = tree:add(F.body, range(0, size))
        item:set_text(name:gsub("^%l", string.upper))
        not_allowed = m.is_request and E.invalid or E.value
        m.body = layout_of(item, layout_prefix(name), layout, range)
        if CHECKS[name] then
            CHECKS[name](m, function(info, text)
                item:add_proto_expert_info(info == E.value and not_allowed or info, text)
            end)
        end
        not_allowed = E.value
    end
    add_rest(tree, part(range, size, length - size))
end

local function add_payload(m, tree, range)
    local name = m.side.payload
    local cursor = new_cursor(range)
    local item = range and tree:add(F.payload, range) or tree
    if range then
        item:set_text("Payload: " .. size_text(range:len()))
    end
    local is_decoded = not name or guarded(item, PAYLOADS[name], m, cursor, item)
    if left(cursor) > 0 then
        add_rest(item, cursor.range(cursor.at, left(cursor)), is_decoded and E.left or E.lost)
    end
end

local FAILURE = { payload = "words" }

local function side_of(m)
    if m.is_reply and m.header.status ~= 0 then
        return FAILURE
    end
    return (m.is_reply and m.known.reply or m.known.request) or {}
end

local function fill_message(context, m, tree, body, payload)
    if not m.known then
        add_rest(tree, body, E.lost)
        add_rest(tree, payload, E.lost)
        return
    end
    m.side = side_of(m)
    add_body(m, tree, body)
    if m.name == "BatchDone" and m.body then
        m.batch = batch_of_notice(context, m.body)
        if m.batch then
            add_found(tree, F.batch_in, m.batch.frame)
        end
    end
    add_payload(m, tree, payload)
end

local function new_message(context, header)
    local m = { header = header, known = SPEC.opcodes[header.opcode], body = nil }
    m.name = m.known and m.known[1] or string.format("opcode 0x%04x", header.opcode)
    m.is_reply = bit.band(header.flags, REPLY) ~= 0
    m.is_callback = bit.band(header.flags, CALLBACK) ~= 0
    m.is_request = not m.is_reply and not m.is_callback
    if m.is_request then
        m.record = record_of_request(context, header)
        m.record.ranges, m.record.operations = {}, {}
        m.record.owner = m.record.owner or context.way
    elseif m.is_reply then
        m.request = record_of_reply(context, header)
    end
    -- A reply or callback that is taken for a request by its opcode is checked as one.
    m.record = m.record or { ranges = {}, operations = {} }
    return m
end

local function add_to_info(context, text)
    context.texts[#context.texts + 1] = text
end

-- A message of head and payload, which the transport has delivered so.
local function add_message(context, tree, range, head_length, is_eager_frame)
    local payload_length = range:len() - head_length
    if head_length < HEADER_SIZE then
        add_rest(tree, range, E.short)
        return add_to_info(context, "malformed message")
    end
    local item = tree:add(dafs, range, "Message")
    local header, items = layout_of(item, "", SPEC.layouts.header, range(0, HEADER_SIZE))
    local m = new_message(context, header)
    m.is_eager_frame = is_eager_frame
    check_header(m, items, head_length, payload_length)
    local body = part(range, HEADER_SIZE, head_length - HEADER_SIZE)
    local payload = part(range, head_length, payload_length)
    guarded(item, fill_message, context, m, item, body, payload)
    note_file(context, m)
    add_match(m, item)
    local text = m.is_reply and reply_text(m) or request_text(m)
    item:set_text("Message: " .. text)
    add_to_info(context, text)
end

-- Frames --------------------------------------------------------------------------------------------------------------

local BODY_SIZES = {
    ["head_len + len"] = function(head, length) return head + length end,
    ["len"] = function(_, length) return length end,
    ["0"] = function() return 0 end,
    ["24 × head_len + len"] = function(head, length) return RANGE_SIZE * head + length end,
    ["24 × head_len"] = function(head) return RANGE_SIZE * head end,
}

-- Whether a kind of frame uses a field of its header.
local function is_used(kind, name, values)
    if name == "flags" then
        return bit.band(values.flags, bit.bnot(kind.flag or 0)) == 0
    elseif name == "value" and kind.flag then
        return bit.band(values.flags, kind.flag) ~= 0
    end
    return kind[name] ~= nil or name == "kind"
end

-- The bytes behind a header; nothing where it is malformed.
local function body_size(header)
    local kind = SPEC.tcp.kinds[header(0, 1):uint()]
    if not kind then
        return nil
    end
    local head, length = header(2, 2):le_uint(), header(4, 4):le_uint()
    local length_max = kind.len_max or SPEC.tcp.hello[4].max
    local is_head_allowed = head >= kind.head_len_min and head <= kind.head_len_max
    if not is_head_allowed or length < kind.len_min or length > length_max then
        return nil
    end
    local values = { flags = header(1, 1):uint() }
    for _, field in ipairs(SPEC.tcp.header) do
        if not is_used(kind, field[3], values) and not is_zero(header(field[1], field[2])) then
            return nil
        end
    end
    return BODY_SIZES[kind.body](head, length)
end

local function check_unused(kind, values, items)
    for _, name in ipairs({ "flags", "head_len", "len", "key", "offset", "value" }) do
        local value = values[name]
        local number = type(value) == "number" and value or value:tonumber()
        if is_used(kind, name, values) then
            items[name]:append_text(kind[name] and (" (" .. kind[name]:gsub(";.*", "") .. ")") or "")
        elseif number ~= 0 then
            items[name]:add_proto_expert_info(E.frame, "A " .. kind[1] .. " does not use this, or not so")
        end
    end
end

local function add_frame_header(tree, range)
    local values, items = layout_of(tree, "frame.", SPEC.tcp.header, range)
    local kind = SPEC.tcp.kinds[values.kind]
    if not kind then
        items.kind:add_proto_expert_info(E.frame, "There is no such kind of frame")
        return values, nil
    end
    if kind.flag then
        items.flags:add(F["frame.immediate"], range(1, 1))
    end
    for _, name in ipairs({ "head_len", "len" }) do
        local bounds = { name, min = kind[name .. "_min"], max = kind[name .. "_max"] }
        bounds.max = bounds.max or SPEC.tcp.hello[4].max
        check_bounds(items[name], bounds, values[name], E.frame)
    end
    check_unused(kind, values, items)
    return values, kind
end

-- The request whose memory a frame reads or writes: the last one that named it and has no reply yet.
local function record_of_memory(context, owner, what, key, offset)
    return find_once(context, string.format("memory %s %s %s", what, key:tohex(), offset:tohex()), function()
        local transfers = context.stream.transfers
        for index = #transfers, 1, -1 do
            for _, range in ipairs(transfers[index].owner == owner and transfers[index].ranges or {}) do
                if range.key == key and offset >= range.offset and offset < range.offset + range.length then
                    return transfers[index]
                end
            end
        end
        return nil
    end)
end

local function add_memory(context, tree, owner, what, key, offset)
    local record = record_of_memory(context, owner, what, key, offset)
    if record then
        add_found(tree, F.data_of, record.frame)
        local opcode = SPEC.opcodes[record.opcode]
        return opcode and (" for " .. opcode[1]) or ""
    end
    return ""
end

local function note_read(context, values, length)
    return find_once(context, "read " .. values.value, function()
        local read = { frame = context.number, left = length, responses = {} }
        context.stream.reads[context.way .. values.value] = read
        return read
    end)
end

local function note_response(context, values)
    return find_once(context, string.format("response %d %s", values.value, values.offset:tohex()), function()
        local key = context.way_back .. values.value
        local read = context.stream.reads[key]
        if read then
            read.left = read.left - values.len
            read.responses[#read.responses + 1] = context.number
            if read.left <= 0 then
                context.stream.reads[key] = nil
            end
        end
        return read
    end)
end

local function add_responses(tree, read)
    for _, number in ipairs(read and read.responses or {}) do
        add_found(tree, F.response_in, number)
    end
end

local function take_frame_ranges(cursor, tree, values, total)
    local ranges = {}
    local sum = UInt64(0)
    for index = 1, values.head_len do
        local range = take(cursor, RANGE_SIZE, "range")
        local item = tree:add(F.range, range)
        ranges[index] = layout_of(item, "range.", SPEC.tcp.range, range)
        item:append_text(string.format(
            " %d: %s bytes at %s of %s", index - 1, grouped(ranges[index].length),
            grouped(ranges[index].offset), hexadecimal(ranges[index].key)))
        sum = sum + ranges[index].length
    end
    if sum ~= UInt64(total) then
        tree:add_proto_expert_info(E.frame, string.format("The ranges have %s bytes in all", grouped(sum)))
    end
    return ranges
end

local function little(text, position, size)
    local value = 0
    for index = size - 1, 0, -1 do
        value = value * 256 + text:byte(position + index)
    end
    return value
end

-- Whether a header stands at a place of a string, and its lengths are these.
local function looks_like_header(text, position, head_length, payload_length)
    return #text >= position + HEADER_SIZE - 1
        and SPEC.opcodes[little(text, position, 2)] ~= nil
        and little(text, position + 12, 2) > 0
        and little(text, position + 14, 2) == head_length
        and little(text, position + 16, 4) == payload_length
        and little(text, position + 36, 4) == 0
end

-- The head of an eager frame: a message in place of data.
local function eager_head_length(range)
    if not range or range:len() < HEADER_SIZE then
        return nil
    end
    local text = range(0, HEADER_SIZE):bytes():raw()
    for _, head_length in ipairs({ 48, 80 }) do
        if looks_like_header(text, 1, head_length, range:len() - head_length) then
            return head_length
        end
    end
    return nil
end

local FRAMES = {}

FRAMES[SEND] = function(context, tree, values, body)
    add_message(context, tree, body, values.head_len)
end

FRAMES[WRITE] = function(context, tree, values, body)
    local is_immediate = bit.band(values.flags, SPEC.tcp.kinds[WRITE].flag) ~= 0
    local head_length = is_immediate and eager_head_length(body)
    local text = "RDMA write " .. size_text(values.len)
    if is_immediate then
        text = text .. ", immediate " .. values.value
    end
    if head_length then
        add_to_info(context, "Eager frame " .. values.value)
        return add_message(context, tree, body, head_length, true)
    end
    text = text .. add_memory(context, tree, context.way_back, "write", values.key, values.offset)
    add_to_info(context, text)
    add_data(tree, body)
end

FRAMES[READ_REQUEST] = function(context, tree, values)
    local text = string.format("RDMA read %d: %s", values.value, size_text(values.len))
    text = text .. add_memory(context, tree, context.way_back, "read", values.key, values.offset)
    add_responses(tree, note_read(context, values, values.len))
    add_to_info(context, text)
end

FRAMES[READ_RESPONSE] = function(context, tree, values, body)
    local read = note_response(context, values)
    if read then
        add_found(tree, F.read_in, read.frame)
    end
    add_to_info(context, string.format("RDMA read response %d: %s", values.value, size_text(values.len)))
    add_data(tree, body)
end

FRAMES[FAULT] = function(context, tree, values)
    local cause = SPEC.tcp.faults[values.value] or ("fault " .. values.value)
    tree:add_proto_expert_info(E.fault, "The sender ends the connection: " .. cause)
    add_to_info(context, "FAULT: " .. cause)
end

local function list_frame(context, tree, values, body, what)
    local cursor = new_cursor(body)
    local ranges = take_frame_ranges(cursor, tree, values, values.len)
    local text = ""
    if ranges[1] then
        text = add_memory(context, tree, context.way_back, "list", ranges[1].key, ranges[1].offset)
    end
    add_to_info(context, string.format(
        "RDMA %s %s in %s%s", what, size_text(values.len), count_text(values.head_len, "range"), text))
    return cursor
end

FRAMES[WRITE_LIST] = function(context, tree, values, body)
    local cursor = list_frame(context, tree, values, body, "write list")
    add_data(tree, take(cursor, left(cursor), "data"))
end

FRAMES[READ_LIST] = function(context, tree, values, body)
    list_frame(context, tree, values, body, "read list " .. values.value .. ":")
    add_responses(tree, note_read(context, values, values.len))
end

local function add_frame(context, root, range)
    local name = SPEC.tcp.kinds[range(0, 1):uint()][1]
    local tree = root:add(dafs, range, "dafs " .. name)
    local header = tree:add(dafs, range(0, FRAME_HEADER_SIZE), "Frame: " .. name)
    local values = add_frame_header(header, range(0, FRAME_HEADER_SIZE))
    local body = part(range, FRAME_HEADER_SIZE, range:len() - FRAME_HEADER_SIZE)
    FRAMES[values.kind](context, tree, values, body)
    tree:append_text(", " .. context.texts[#context.texts])
end

local function add_malformed_frame(context, root, range)
    local tree = root:add(dafs, range, "dafs, malformed frame")
    add_frame_header(tree, range)
    add_to_info(context, "malformed frame")
end

local function add_hello(context, root, range)
    local tree = root:add(dafs, range, "dafs, hello of the transport")
    context.stream.has_hello[context.way] = true
    tree:add(F["tcp_hello.magic_text"], range(0, 8))
    local layout = {}
    for index = 2, #SPEC.tcp.hello do
        layout[index - 1] = SPEC.tcp.hello[index]
    end
    local values = layout_of(tree, "tcp_hello.", layout, range)
    add_to_info(context, string.format(
        "hello of the transport, version %d, payload %s", values.version, size_text(values.recv_payload_max)))
end

-- Streams -------------------------------------------------------------------------------------------------------------

-- Connections by addresses and ports, and of packets that were seen. (Wireshark numbers its streams, but tells nobody while
-- it shows no packet.)
local streams, stream_of_packet = {}, {}

function dafs.init()
    streams, stream_of_packet = {}, {}
end

local function new_stream()
    return {
        -- Directions in which the next byte is known to begin a frame.
        is_in_step = {},
        -- Whether a call began in step, by packet.
        began = {},
        -- Directions whose hello was seen.
        has_hello = {},
        -- Requests without a reply, by slot, sequence and opcode; and those whose memory may be written or read.
        pending = {}, transfers = {},
        -- Reads without all of their response, by direction and id.
        reads = {},
        -- Paths by handle.
        files = {},
        found = {},
    }
end

-- A second hello in one direction begins another connection of the same ports.
local function stream_of(tvb, pinfo, way, way_back)
    if not stream_of_packet[pinfo.number] then
        local name = way < way_back and (way .. " " .. way_back) or (way_back .. " " .. way)
        local is_hello = tvb:raw(0, math.min(tvb:len(), #MAGIC)) == MAGIC
        if not streams[name] or (is_hello and streams[name].has_hello[way]) then
            streams[name] = new_stream()
        end
        stream_of_packet[pinfo.number] = streams[name]
    end
    return stream_of_packet[pinfo.number]
end

local function looks_like_send(text, position)
    return text:byte(position) == SEND
        and #text >= position + FRAME_HEADER_SIZE + HEADER_SIZE - 1
        and text:byte(position + 1) == 0
        and not text:sub(position + 8, position + FRAME_HEADER_SIZE - 1):find("[^%z]")
        and little(text, position + 2, 2) <= HEAD_SIZE_MAX
        and looks_like_header(
            text, position + FRAME_HEADER_SIZE, little(text, position + 2, 2), little(text, position + 4, 4))
end

-- Where the first message or hello begins; nothing where none is found.
local function find_begin(text, position)
    local hello = text:find(MAGIC, position, true)
    local at = text:find("\1\0", position, true)
    while at and at < (hello or math.huge) do
        if looks_like_send(text, at) then
            return at
        end
        at = text:find("\1\0", at + 1, true)
    end
    return hello
end

local function add_undecoded(context, root, range, why)
    local tree = root:add(dafs, range, "dafs, " .. size_text(range:len()) .. " not decoded")
    tree:add(F.rest, range):add_proto_expert_info(E.lost, why)
    add_to_info(context, size_text(range:len()) .. " not decoded")
end

local IN_THE_MIDDLE = "The capture begins, or lacks bytes, in the middle of a frame: waiting for a message"

-- Asks for more bytes: the call comes again with all from `at` on.
local function wait_for(context, at, count)
    context.pinfo.desegment_offset = at
    context.pinfo.desegment_len = count
end

-- Dissects what begins at a place: returns how many bytes it has, or nothing when more are needed.
local function add_next(context, root, tvb, at)
    local there = tvb:len() - at
    local is_hello = tvb(at, 1):uint() == MAGIC:byte(1)
    if there < FRAME_HEADER_SIZE then
        -- As many as there will be: two exact numbers for one frame, that of the header and that of all, confuse Wireshark.
        return nil, DESEGMENT_ONE_MORE_SEGMENT
    end
    if is_hello and tvb:raw(at, #MAGIC) == MAGIC then
        add_hello(context, root, tvb(at, HELLO_SIZE))
        return HELLO_SIZE
    end
    local size = body_size(tvb(at, FRAME_HEADER_SIZE))
    if not size then
        add_malformed_frame(context, root, tvb(at, FRAME_HEADER_SIZE))
        context.stream.is_in_step[context.way] = false
        return FRAME_HEADER_SIZE
    end
    local total = FRAME_HEADER_SIZE + size
    if there < total then
        return nil, total - there
    end
    add_frame(context, root, tvb(at, total))
    return total
end

-- Skips what cannot be told apart; returns how much.
local function skip(context, root, tvb, at)
    local text = tvb:raw(at, tvb:len() - at)
    local begin = find_begin(text, 1)
    local count = begin and (begin - 1) or #text
    context.stream.is_in_step[context.way] = begin ~= nil
    if count > 0 then
        add_undecoded(context, root, tvb(at, count), IN_THE_MIDDLE)
    end
    return count
end

-- Whether the call begins in step. A beginning that is too short to tell is taken for one.
local function begins_in_step(context, tvb)
    local stream, way = context.stream, context.way
    local key = string.format("%d:%d:%d", context.number, tvb:offset(), tvb:len())
    if not context.pinfo.visited then
        if stream.is_in_step[way] == nil then
            local length = math.min(tvb:len(), #MAGIC)
            stream.is_in_step[way] = tvb:raw(0, length) == MAGIC:sub(1, length)
        end
        stream.began[key] = stream.is_in_step[way]
        stream.began[context.number] = stream.is_in_step[way]
    end
    -- Bytes of a packet may come in other portions when it is looked at again.
    local began = stream.began[key]
    if began == nil then
        began = stream.began[context.number]
    end
    stream.is_in_step[way] = began
end

local function show(context)
    local info = context.pinfo.cols.info
    local text = table.concat(context.texts, "; ")
    if text ~= "" then
        info:append((context.is_first and "" or "; ") .. text)
    end
    -- What another part of the same packet says comes behind it.
    info:fence()
end

local function new_context(tvb, pinfo)
    local way = tostring(pinfo.src) .. ":" .. pinfo.src_port
    local way_back = tostring(pinfo.dst) .. ":" .. pinfo.dst_port
    pinfo.cols.protocol = "dafs"
    pinfo.cols.info:clear()
    local shown = tostring(pinfo.cols.info)
    return {
        pinfo = pinfo,
        number = pinfo.number,
        stream = stream_of(tvb, pinfo, way, way_back),
        way = way,
        way_back = way_back,
        is_first = shown == "" or shown:match("^%(") ~= nil,
        texts = {},
    }
end

function dafs.dissector(tvb, pinfo, root)
    local context = new_context(tvb, pinfo)
    local at = 0
    begins_in_step(context, tvb)
    while at < tvb:len() do
        if not context.stream.is_in_step[context.way] then
            at = at + skip(context, root, tvb, at)
        else
            local count, missing = add_next(context, root, tvb, at)
            if not count and tvb:len() < tvb:reported_len() then
                -- The capture has cut the packet.
                add_undecoded(context, root, tvb(at, tvb:len() - at), "The capture cut this packet")
                context.stream.is_in_step[context.way] = false
                break
            elseif not count then
                wait_for(context, at, missing)
                break
            end
            at = at + count
        end
    end
    show(context)
    return tvb:len()
end

local function is_dafs(tvb)
    local text = tvb:raw(0, math.min(tvb:len(), FRAME_HEADER_SIZE + HEADER_SIZE))
    return text:sub(1, #MAGIC) == MAGIC or looks_like_send(text, 1)
end

-- Registration --------------------------------------------------------------------------------------------------------

dafs.prefs.port = Pref.uint(
    "TCP port", 12049, "Port that is taken for dafs; connections of others are recognized by their bytes")

local registered_port

local function register_port()
    local ports = DissectorTable.get("tcp.port")
    if registered_port and registered_port > 0 then
        ports:remove(registered_port, dafs)
    end
    registered_port = dafs.prefs.port
    if registered_port > 0 then
        ports:add(registered_port, dafs)
    end
end

function dafs.prefs_changed()
    if dafs.prefs.port ~= registered_port then
        register_port()
    end
end

register_port()

dafs:register_heuristic("tcp", function(tvb, pinfo, root)
    if not is_dafs(tvb) then
        return false
    end
    pinfo.conversation = dafs
    dafs.dissector(tvb, pinfo, root)
    return true
end)
