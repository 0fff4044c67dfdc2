/**
 * Real resources for benches: repeated copies of Synthea's patients. Copies differ in ids, names, identifiers and dates
 * but share codes and values, so that per-patient data stays rare and shared data grows.
 */
import { randomUUIDv7 } from 'node:crypto'
import type { Principal } from '../../shared/access/principal.ts'
import type { Resource } from '../../shared/fhir/resource.ts'
import type { Services } from '../../shared/request/services.ts'
import { syntheaTexts } from '../../test/fixtures/resources.ts'

const AT_ONCE = 128
const DAY_MS = 86_400_000
const UUID = /[0-9a-f]{8}(?:-[0-9a-f]{4}){3}-[0-9a-f]{12}/g
const FAMILY = /(?<="family":")[^"]+/g
const DATE = /(?<=")(?:19|20)\d\d-\d\d-\d\d/g

export async function syntheaResources(): Promise<Resource[]> {
  return (await syntheaTexts()).flatMap((text) => {
    const { entry } = JSON.parse(text) as { entry: { fullUrl: string; resource: Resource }[] }
    const types = new Map(entry.map((item) => [item.fullUrl, item.resource.resourceType]))
    const literal = text.replaceAll(
      /"(urn:uuid:([0-9a-f-]{36}))"/g,
      (_whole, url: string, id: string) => `"${types.get(url) ?? 'Patient'}/${id}"`,
    )
    const bundle = JSON.parse(literal) as { entry: { resource: Resource }[] }
    return bundle.entry.map(({ resource }) => resource)
  })
}

export async function* copies(resources: number): AsyncGenerator<readonly Resource[]> {
  const originals = (await syntheaResources()).map((resource) => JSON.stringify(resource))
  for (let copy = 0, left = resources; left > 0; copy++) {
    const made = copyResources(originals, copy).slice(0, left)
    left -= made.length
    yield made
  }
}

/** Creates resources and gathers planner statistics, as on a server in use. */
export async function load(
  services: Services,
  principal: Principal,
  resources: number,
): Promise<void> {
  for await (const made of copies(resources)) await createAll(services, principal, made)
  await services.database.query({ text: 'vacuum analyze' })
  // Otherwise the load is written to disk during the bench.
  await services.database.query({ text: 'checkpoint' })
}

export async function createAll(
  { repository }: Services,
  principal: Principal,
  resources: readonly Resource[],
): Promise<void> {
  for (let start = 0; start < resources.length; start += AT_ONCE) {
    const group = resources.slice(start, start + AT_ONCE)
    await Promise.all(
      group.map((resource) => repository.create(principal, resource, { keepId: true })),
    )
  }
}

export function pickSample<T>(list: readonly T[]): T {
  const item = list[Math.floor(Math.random() * list.length)]
  if (item === undefined) throw new Error('There is nothing to choose from')
  return item
}

function copyResources(originals: readonly string[], copy: number): Resource[] {
  const ids = new Map<string, string>()
  const days = (copy * 37) % 3650
  return originals.map((text) =>
    JSON.parse(
      text
        .replace(UUID, (id) => {
          const own = ids.get(id) ?? randomUUIDv7()
          ids.set(id, own)
          return own
        })
        .replace(DATE, (date) =>
          new Date(Date.parse(date) - days * DAY_MS).toISOString().slice(0, 10),
        )
        .replace(FAMILY, (name) => `${name}${copy}`),
    ),
  )
}
