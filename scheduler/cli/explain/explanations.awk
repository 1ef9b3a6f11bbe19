# Turns the tables of docs/errors.md, and that of the verdicts in docs/runs.md, into the C++ source of all_explanations().
#
# A heading of a table decides about its rows: `code`, `error`, `exit code` or `verdict`. The last cell of a row is what to do.

BEGIN {
  FS = " *[|] *"
  print "#include \"scheduler/cli/explain/explanation.h\"\n"
  print "namespace shoal::scheduler::cli {\n"
  print "std::span<const Explanation> all_explanations() {"
  print "  static constexpr Explanation kAll[] = {"
}

function quoted(text) {
  gsub(/\\/, "\\\\", text)
  gsub(/"/, "\\\"", text)
  text = plain(text)
  return "\"" text "\""
}

# A link of Markdown as its text.
function plain(text,   at) {
  while (match(text, /\[[^]]*\]\([^)]*\)/)) {
    at = substr(text, RSTART + 1, RLENGTH - 1)
    sub(/\].*/, "", at)
    text = substr(text, 1, RSTART - 1) at substr(text, RSTART + RLENGTH)
  }
  return text
}

function emit(kind, name, codes, meaning, causes, remedy) {
  printf "      {Explanation::Kind::%s, %s, %s, %s, %s, %s},\n", kind, quoted(name), quoted(codes), quoted(meaning), quoted(causes), quoted(remedy)
  count++
}

$2 == "code" || $2 == "error" || $2 == "exit code" || $2 == "verdict" { table = $2; next }
!/^[|]/ { table = ""; next }
/^[|]---/ || table == "" { next }

{
  for (i = 2; i < NF; i++) sub(/ +$/, "", $i)
  if (NF != (table == "error" ? 6 : 5)) {
    print FILENAME ":" FNR ": a row has another number of cells than its table" > "/dev/stderr"
    failed = 1
    exit 1
  }
  name = $2
  gsub(/`/, "", name)
  if (table == "code") emit("kCode", name, name, $3, "", $4)
  if (table == "verdict") emit("kVerdict", name, "", $3, "", $4)
  if (table == "exit code") emit("kExit", name, "", $3, "", $4)
  if (table == "error") {
    codes = name
    gsub(/\/[A-Za-z]+/, "", codes)
    sub(/,.*/, "", name)
    sub(/.*\//, "", name)
    emit("kReason", name, codes, $3, $4, $5)
  }
}

END {
  if (failed || count == 0) exit 1
  print "  };"
  print "  return kAll;"
  print "}\n"
  print "}  // namespace shoal::scheduler::cli"
}
