/** `botica load-package`: stores the definitions of an implementation guide in the project of the client. */
import { createReadStream } from 'node:fs'
import path from 'node:path'
import { Readable } from 'node:stream'
import { pipeline } from 'node:stream/promises'
import { createGunzip } from 'node:zlib'
import type { MedplumClient } from '@medplum/core'
import { Parser } from 'tar'
import { callerFolder } from './folder.ts'
import { note } from './print.ts'

/** https://hl7.org/fhir/R4/packages.html: examples and other formats are in folders below this one. */
const DEFINITION = /^package\/[^/]+\.json$/
const MANIFEST = 'package/package.json'
/** Packages of FHIR itself, whose definitions the service has. */
const CORE = /^hl7\.fhir\.r4\.core$/
const BATCH_CHARACTERS = 1_000_000
const BATCH_ENTRIES = 50

interface Resource {
  readonly resourceType: string
  readonly id?: string
  readonly url?: string
  readonly version?: string
  readonly code?: string
  readonly base?: readonly string[]
}

type Definition = Resource & { readonly url: string }

/** The parts of a CapabilityStatement and of a batch response that are read. */
interface Capabilities {
  readonly rest: readonly {
    readonly resource: readonly {
      readonly type: string
      readonly searchParam?: readonly { readonly name: string; readonly definition?: string }[]
    }[]
  }[]
}

interface Response {
  readonly status: string
  readonly outcome?: {
    readonly issue: readonly {
      readonly details?: { readonly text?: string }
      readonly expression?: readonly string[]
    }[]
  }
}

interface Manifest {
  readonly name?: string
  readonly version?: string
  readonly dependencies?: Readonly<Record<string, string>>
}

interface Counts {
  stored: number
  created: number
}

/** Errors: a message for an unreadable package, or after the load for rejected definitions. */
export async function loadPackage(medplum: MedplumClient, place: string): Promise<void> {
  const loader = new Loader(medplum, await medplum.get('fhir/R4/metadata'))
  let manifest: Manifest | undefined
  try {
    for await (const { name, text } of readFiles(await openPlace(place))) {
      if (name === MANIFEST) manifest = JSON.parse(text) as Manifest
      else if (DEFINITION.test(name)) await loader.add(JSON.parse(text), text.length)
    }
  } catch (error) {
    if (!isDamagedPackage(error)) throw error
    throw new Error(`${place} is not a package: ${error.message}`)
  }
  if (manifest === undefined) throw new Error(`${place} is not a package: it has no ${MANIFEST}`)
  await loader.flush()
  printLoaded(manifest, loader)
}

/** Errors of zlib, tar and JSON. */
function isDamagedPackage(error: unknown): error is Error {
  return (
    error instanceof SyntaxError ||
    (error instanceof Error && 'code' in error && /^Z_|TAR_/.test(String(error.code)))
  )
}

async function openPlace(place: string): Promise<Readable> {
  if (!/^https?:/.test(place)) return createReadStream(path.resolve(callerFolder(), place))
  const response = await fetch(place)
  if (response.ok && response.body !== null) return Readable.fromWeb(response.body)
  throw new Error(`${place} answered ${response.status}`)
}

interface PackageFile {
  readonly name: string
  readonly text: string
}

/** Holds no more than the files of one chunk in memory. */
async function* readFiles(archive: Readable): AsyncGenerator<PackageFile> {
  const read: PackageFile[] = []
  const parser = new Parser({
    strict: true,
    onReadEntry(entry) {
      const chunks: Buffer[] = []
      entry.on('data', (chunk) => chunks.push(chunk))
      entry.on('end', () => read.push({ name: entry.path, text: Buffer.concat(chunks).toString() }))
    },
  })
  let damage: unknown
  parser.on('error', (error) => {
    damage ??= error
  })
  const chunks = createGunzip()
  const piping = pipeline(archive, chunks)
  piping.catch(() => {})
  for await (const chunk of chunks) {
    parser.write(chunk)
    yield* read.splice(0)
    if (damage !== undefined) throw damage
  }
  await piping
  parser.end()
  yield* read.splice(0)
  if (damage !== undefined) throw damage
}

class Loader {
  readonly counts = new Map<string, Counts>()
  readonly skipped: string[] = []
  readonly rejected: string[] = []
  readonly #medplum: MedplumClient
  /** Type → code → url of its search parameters. */
  readonly #searched: ReadonlyMap<string, ReadonlyMap<string, string | undefined>>
  #batch: Definition[] = []
  #characters = 0

  constructor(medplum: MedplumClient, { rest }: Capabilities) {
    this.#medplum = medplum
    this.#searched = new Map(
      (rest[0]?.resource ?? []).map(({ type, searchParam = [] }) => [
        type,
        new Map(searchParam.map(({ name, definition }) => [name, definition])),
      ]),
    )
  }

  /** Stores resources that are found by url and version, and leaves out all others. */
  async add(resource: Resource, characters: number): Promise<void> {
    const { resourceType: type } = resource
    const codes = this.#searched.get(type)
    if (!isDefinition(resource) || !codes?.has('url') || !codes.has('version')) return
    const taken = this.#takenCode(resource)
    if (taken !== undefined) {
      this.skipped.push(taken)
      return
    }
    this.#batch.push(resource)
    this.#characters += characters
    if (this.#characters >= BATCH_CHARACTERS || this.#batch.length >= BATCH_ENTRIES) {
      await this.flush()
    }
  }

  /** Returns the code of a search parameter that the service has by another definition. */
  #takenCode(resource: Definition): string | undefined {
    if (resource.resourceType !== 'SearchParameter') return undefined
    const { code = '', base = [], url } = resource
    const urls = base.map((type) => this.#searched.get(type)?.get(code))
    return urls.some((known) => known !== undefined && known !== url) ? code : undefined
  }

  async flush(): Promise<void> {
    const batch = this.#batch
    this.#batch = []
    this.#characters = 0
    if (batch.length === 0) return
    await this.#medplum.refreshIfExpired()
    const { entry = [] } = await this.#medplum.executeBatch({
      resourceType: 'Bundle',
      type: 'batch',
      entry: batch.map(toEntry),
    })
    for (const [i, definition] of batch.entries()) this.#settle(definition, entry[i]?.response)
  }

  #settle(definition: Definition, response: Response | undefined): void {
    const { resourceType: type, url } = definition
    const status = response?.status ?? ''
    if (!status.startsWith('2')) {
      const issue = response?.outcome?.issue[0]
      const where = issue?.expression === undefined ? '' : ` (${issue.expression.join()})`
      this.rejected.push(`${type} ${url}: ${issue?.details?.text ?? status}${where}`)
      return
    }
    const counts = this.counts.get(type) ?? { stored: 0, created: 0 }
    counts.stored += 1
    if (status.startsWith('201')) counts.created += 1
    this.counts.set(type, counts)
  }
}

function isDefinition(resource: Resource): resource is Definition {
  return typeof resource.url === 'string'
}

/** The service chooses ids; a url and version names one definition, so a second load updates the first. */
function toEntry({ id: _, ...resource }: Definition) {
  const { resourceType: type, url, version } = resource
  const query = new URLSearchParams({ url })
  if (version === undefined) query.set('version:missing', 'true')
  else query.set('version', version)
  return { resource, request: { method: 'PUT', url: `${type}?${query}` } }
}

function printLoaded({ name, version, dependencies = {} }: Manifest, loader: Loader): void {
  const { counts, skipped, rejected } = loader
  console.log(`${name} ${version}`)
  for (const [type, { stored, created }] of [...counts].sort()) {
    console.log(`${type.padEnd(20)} ${stored} (${created} new)`)
  }
  if (skipped.length > 0) {
    const noun = skipped.length === 1 ? 'SearchParameter' : 'SearchParameters'
    const codes = skipped.join(', ')
    console.log(`${skipped.length} ${noun} skipped, whose codes other definitions have: ${codes}`)
  }
  const others = Object.entries(dependencies).filter(([other]) => !CORE.test(other))
  if (others.length > 0) {
    console.log(`not loaded: ${others.map((pair) => pair.join(' ')).join(', ')}`)
  }
  for (const line of rejected) note('red', line)
  if (rejected.length > 0) throw new Error(`The service rejected ${rejected.length} definitions`)
}
