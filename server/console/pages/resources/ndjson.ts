/** A result as lines of JSON, page by page up to a bound: what is larger is an export's. */
import type { Bundle } from '@medplum/fhirtypes'
import { saveText } from '../../parts/save.ts'
import { medplum } from '../../session.ts'
import { fill, texts } from '../../texts/texts.ts'

const PAGE = 1000
const MOST_PAGES = 20

/** Errors: more than the bound, and those of the service. */
export async function saveLines(type: string, query: URLSearchParams): Promise<void> {
  const lines: string[] = []
  query.set('_count', String(PAGE))
  let next: string | undefined = `fhir/R4/${type}?${query}`
  for (let page = 0; next !== undefined; page++) {
    if (page === MOST_PAGES) throw new Error(fill(texts.resources.tooMany, { most: PAGE * page }))
    const bundle: Bundle = await medplum.get(next, { cache: 'no-store' })
    for (const { resource } of bundle.entry ?? []) lines.push(JSON.stringify(resource))
    next = bundle.link?.find(({ relation }) => relation === 'next')?.url
  }
  saveText(lines.map((line) => `${line}\n`).join(''), `${type}.ndjson`, 'application/fhir+ndjson')
}
