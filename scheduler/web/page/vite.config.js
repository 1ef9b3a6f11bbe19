// Builds the page as one file, dist/index.html: script and style inside, with the policy that allows exactly these, and the hash of the
// sources (tests/dashboard/page_build_test.py compares it).
import { createHash } from "node:crypto";
import { readFileSync, readdirSync } from "node:fs";
import { defineConfig } from "vite";

const root = import.meta.dirname;

function sourcesHash() {
  const files = readdirSync(`${root}/src`, { recursive: true, withFileTypes: true })
    .filter((entry) => entry.isFile())
    .map((entry) => `${entry.parentPath}/${entry.name}`.slice(root.length + 1));
  const hash = createHash("sha256");
  for (const name of [...files, "index.html", "package.json", "package-lock.json", "tsconfig.json", "vite.config.js"].sort()) {
    const bytes = readFileSync(`${root}/${name}`);
    hash.update(`${name}\0${bytes.length}\0`).update(bytes);
  }
  return hash.digest("hex");
}

const sha256 = (text) => `'sha256-${createHash("sha256").update(text).digest("base64")}'`;

// Puts script and style into the HTML file, and leaves no other file.
const oneFile = {
  name: "one-file",
  enforce: "post",
  generateBundle(_, bundle) {
    const html = bundle["index.html"];
    const chunks = Object.values(bundle).filter((file) => file.type === "chunk");
    const styles = Object.values(bundle).filter((file) => file.fileName.endsWith(".css"));
    if (chunks.length !== 1) this.error(`the page has ${chunks.length} scripts, not one`);
    // The end of a script element ends the script wherever it stands.
    const script = chunks[0].code.trim().replaceAll("</script", "<\\/script");
    const style = styles.map((file) => String(file.source).trim()).join("");
    const policy = [
      "default-src 'none'",
      `script-src ${sha256(script)}`,
      "style-src 'unsafe-inline'", // uPlot and Preact set style attributes
      "img-src data:",
      "connect-src 'self'",
      "base-uri 'none'",
      "form-action 'none'",
    ].join("; ");
    const head =
      `<meta http-equiv="Content-Security-Policy" content="${policy}" />\n    <meta name="sources" content="${sourcesHash()}" />\n` +
      `    <style>${style}</style>\n  </head>`;
    html.source = String(html.source)
      .replace(/\s*<script[^>]*src=[^>]*><\/script>/g, "")
      .replace(/\s*<link rel="(stylesheet|modulepreload)"[^>]*>/g, "")
      .replace("</head>", () => head)
      .replace("</body>", () => `  <script type="module">${script}</script>\n  </body>`);
    for (const file of [...chunks, ...styles]) delete bundle[file.fileName];
  },
};

export default defineConfig({
  root,
  base: "./",
  plugins: [oneFile],
  oxc: { jsx: { runtime: "automatic", importSource: "preact" } },
  build: { target: "es2022", modulePreload: false, cssCodeSplit: false, assetsInlineLimit: 1 << 20, reportCompressedSize: false },
});
