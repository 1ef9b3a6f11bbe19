# Turns the table of variables in docs/configuration.md into the C++ source of all_settings().

BEGIN {
  FS = " *[|] *"
  print "#include \"scheduler/cli/configuration/configuration.h\"\n"
  print "namespace shoal::scheduler::cli {\n"
  print "std::span<const Setting> all_settings() {"
  print "  static constexpr Setting kAll[] = {"
}

function quoted(text) {
  gsub(/ *\(\[[^]]*\]\([^)]*\)\)/, "", text)  # links to other pages
  gsub(/\\/, "\\\\", text)
  gsub(/"/, "\\\"", text)
  return "\"" text "\""
}

$2 == "variable" { in_table = 1; next }
!/^[|]/ { in_table = 0; next }
/^[|]---/ || !in_table { next }

{
  if (NF != 5) {
    print FILENAME ":" FNR ": a row of variables has three cells" > "/dev/stderr"
    failed = 1
    exit 1
  }
  gsub(/`/, "", $2)
  printf "      {%s, %s, %s},\n", quoted($2), quoted($3), quoted($4)
  count++
}

END {
  if (failed || count == 0) exit 1
  print "  };"
  print "  return kAll;"
  print "}\n"
  print "}  // namespace shoal::scheduler::cli"
}
