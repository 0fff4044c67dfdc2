/**
 * Resources of an import → the store. Lines share one transaction, a few statements for some hundreds of
 * them; a transaction that is refused is halved until each line at fault stands alone.
 */
import type { Principal } from '../access/principal.ts'
import { HttpError, preconditionFailed } from '../errors.ts'
import { isObject, type Resource } from '../fhir/resource.ts'
import type { Services } from '../services.ts'
import { advancePart, type ImportProgress, type TakenPart } from '../store/import-parts.ts'
import type { WriteResult } from '../store/repository.ts'
import { idOf, type ReadLine, refusalOf } from './import-lines.ts'
import { charge, unitsOf } from './load.ts'
import { forgetDefinitions } from './profiles.ts'

const IMPORTED_TIME = 'fhir/StructureDefinition/imported-lastUpdated'

/** The part is another worker's by now, or its import was cancelled. */
export class PartLost extends Error {}

/**
 * Writes lines that follow each other, and notes in the same transaction that they are done. Answers how many
 * were refused. Errors: 5xx, when the lines may be written again; PartLost.
 */
export async function writeLines(
  services: Services,
  principal: Principal,
  part: TakenPart,
  lines: readonly ReadLine[],
): Promise<number> {
  const units = unitsOf({ kind: 'update', type: part.type ?? '', id: '' }) * lines.length
  await charge(services, principal, { mayWait: true }, units, true)
  let failed = 0
  for (const run of untilTwins(await withTimes(services, principal, part, lines))) {
    failed += await writeOrHalve(services, principal, part, run)
  }
  return failed
}

/** What of an import stands alone in a statement: no resource twice. */
function untilTwins(lines: readonly ReadLine[]): readonly (readonly ReadLine[])[] {
  const runs: ReadLine[][] = []
  let run: ReadLine[] = []
  let ids = new Set<string>()
  for (const line of lines) {
    const id = idOf(line)
    if (id !== undefined && ids.has(id)) {
      runs.push(run)
      run = []
      ids = new Set()
    }
    if (id !== undefined) ids.add(id)
    run.push(line)
  }
  return [...runs, run]
}

/** A line that is to be left alone, since its resource is there. */
const SKIPPED = preconditionFailed()

/**
 * When a resource was last changed in the system that it comes from is kept as an extension: `lastUpdated` is the
 * time of the write here. What comes back to where it was exported has nothing to keep.
 */
async function withTimes(
  services: Services,
  principal: Principal,
  { type, mode }: TakenPart,
  lines: readonly ReadLine[],
): Promise<readonly ReadLine[]> {
  const skips = mode === 'ifNoneMatch'
  if (!skips && lines.every(({ foreignTime }) => foreignTime === undefined)) return lines
  const { repository, config } = services
  const asked = lines.map((line) => ({ type: type ?? '', id: idOf(line) ?? '' }))
  const stored = await repository.readMany(principal, asked)
  return lines.map((line, i) => {
    const { read, foreignTime } = line
    const version = stored[i]
    if (read instanceof HttpError) return line
    if (skips && version !== undefined) return { ...line, read: SKIPPED }
    if (foreignTime === undefined) return line
    if (version?.lastUpdated.getTime() === Date.parse(foreignTime)) return line
    return { ...line, read: withTime(read, `${config.baseUrl}${IMPORTED_TIME}`, foreignTime) }
  })
}

function withTime(resource: Resource, url: string, valueInstant: string): Resource {
  const { meta } = resource
  const given = isObject(meta) && Array.isArray(meta.extension) ? meta.extension : []
  const others = given.filter((item) => !(isObject(item) && item.url === url))
  return { ...resource, meta: { ...meta, extension: [...others, { url, valueInstant }] } }
}

async function writeOrHalve(
  services: Services,
  principal: Principal,
  part: TakenPart,
  lines: readonly ReadLine[],
): Promise<number> {
  if (lines.length === 0) return 0
  try {
    return await write(services, principal, part, lines)
  } catch (error) {
    const refusal = refusalOf(error)
    const writable = lines.filter((line) => idOf(line) !== undefined)
    if (writable.length < 2) {
      const settled = lines.map((line) =>
        idOf(line) === undefined ? line : { ...line, read: refusal },
      )
      return await write(services, principal, part, settled)
    }
    const half = Math.ceil(lines.length / 2)
    const failed = await writeOrHalve(services, principal, part, lines.slice(0, half))
    return failed + (await writeOrHalve(services, principal, part, lines.slice(half)))
  }
}

async function write(
  services: Services,
  principal: Principal,
  { job, part, lease, type, mode }: TakenPart,
  lines: readonly ReadLine[],
): Promise<number> {
  const resources = lines.flatMap(({ read }) => (read instanceof HttpError ? [] : [read]))
  const refused = lines.flatMap(({ number, read }) =>
    read instanceof HttpError ? [{ number, read }] : [],
  )
  // In that mode a condition is the only one there is: what fails by it is there already.
  const isSkipped = (error: HttpError) => mode === 'ifNoneMatch' && error.status === 412
  const failures = refused.flatMap(({ number, read }) =>
    isSkipped(read) ? [] : [{ line: number, outcome: lineFailure(number, read) }],
  )
  const first = lines[0]
  const last = lines.at(-1)
  if (first === undefined || last === undefined) return 0
  const options = { keepId: true, onlyIfAbsent: mode === 'ifNoneMatch' }
  await services.repository.transaction(async (transaction) => {
    transaction.readAhead(
      principal,
      resources.map(({ id = '' }) => ({ type: type ?? '', id })),
    )
    const written = await transaction.together<WriteResult>(
      resources.map((resource) => (inner) => inner.update(principal, resource, options)),
      (_, error) => error,
    )
    const count = (outcome: WriteResult['outcome']) =>
      written.filter((result) => result.outcome === outcome).length
    const progress: ImportProgress = {
      job,
      part,
      lease,
      bytes: [first.start, last.end],
      lines: [first.number, last.number + 1],
      created: count('created'),
      updated: count('updated'),
      unchanged: count('unchanged'),
      skipped: refused.length - failures.length,
      failures,
    }
    const isOurs = await transaction.beside((connection) => advancePart(connection, progress))
    if (!isOurs) throw new PartLost()
  })
  if (type !== null && resources.length > 0) forgetDefinitions(services, type)
  return failures.length
}

/** A line of an error file. */
export function lineFailure(line: number, { outcome }: HttpError): string {
  const issue = outcome.issue.map((item) => ({
    ...item,
    diagnostics:
      item.diagnostics === undefined ? `Line ${line}` : `Line ${line}: ${item.diagnostics}`,
  }))
  return JSON.stringify({ resourceType: 'OperationOutcome', issue })
}
