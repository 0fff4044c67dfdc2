/** `url` or `url|version`: https://hl7.org/fhir/R4/references.html#canonical */

export function urlOf(canonical: string): string {
  return canonical.split('|', 1)[0] ?? canonical
}

export function versionOf(canonical: string): string | undefined {
  const version = canonical.slice(urlOf(canonical).length + 1)
  return version === '' ? undefined : version
}

const { compare } = new Intl.Collator('en', { numeric: true })

interface Named {
  readonly url?: unknown
  readonly version?: unknown
}

/** The version asked for, else the highest. */
export function chosen<T extends object>(items: readonly T[], canonical: string): T | undefined {
  const [url, version] = [urlOf(canonical), versionOf(canonical)]
  const named = (item: object): Named => item
  const fitting = items.filter((item) => {
    const own = named(item)
    return own.url === url && (version === undefined || own.version === version)
  })
  const textOf = (item: T) => String(named(item).version ?? '')
  return fitting.sort((a, b) => compare(textOf(b), textOf(a)))[0]
}
