/** Writes HTML. */

interface Page {
  readonly title: string
  /** Attributes `data-*` of the body, for the script of the page. */
  readonly data?: Readonly<Record<string, string>> | undefined
  readonly head: readonly string[]
  readonly body: string
}

export function formatPage({ title, data = {}, head, body }: Page): string {
  const attributes = Object.entries(data).map(
    ([name, value]) => ` data-${name}="${escapeHtml(value)}"`,
  )
  return `<!doctype html>
<html lang="en">
<head>
<meta charset="utf-8">
<meta name="viewport" content="width=device-width, initial-scale=1">
<title>${escapeHtml(title)}</title>
${head.join('\n')}
</head>
<body${attributes.join('')}>
${body}
</body>
</html>
`
}

export function escapeHtml(text: string): string {
  return text.replace(/[&<>"']/g, (character) => `&#${character.charCodeAt(0)};`)
}
