/** `POST $import`: a worker imports NDJSON files with the caller's rights. */

import { randomUUID } from 'node:crypto'
import { may } from '../access/policy.ts'
import type { Principal } from '../access/principal.ts'
import type { Config } from '../core/config/config.ts'
import {
  accepted,
  badRequest,
  forbidden,
  forbiddenBecause,
  forbiddenByPlatform,
  isAbsent,
  tooManyRequests,
  withExpression,
} from '../core/errors.ts'
import { recordBulk } from '../export/bulk-jobs.ts'
import type { Connection } from '../postgres/statement.ts'
import { wakeWorkers } from '../redis/wakes.ts'
import { toBinaryPath } from '../request/binary/attachments.ts'
import { type Inputs, readKnownInputs } from '../request/parameters.ts'
import { absoluteUrl, fhirBases, outcomeReply } from '../request/reply.ts'
import type { Operation, OperationCall } from '../request/request.ts'
import type { Services } from '../request/services.ts'
import { addImport, type ImportInput, type ImportMode, importUrl, type NewImport } from './jobs.ts'
import { isImportable } from './lines.ts'

const FORMATS: ReadonlySet<string> = new Set([
  'application/fhir+ndjson',
  'application/ndjson',
  'ndjson',
])
const MOST_INPUTS = 1000
const LONGEST_URL = 4096
const MOST_UNDER_WAY = 12
const RETRY_SECONDS = 10

/** 202 with the status URL. Errors: 400 for invalid inputs, 403, 429 with too many imports. */
export const importResources: Operation = {
  name: 'import',
  on: [{ level: 'system' }],
  methods: ['POST'],
  inputs: {
    inputFormat: 'text: application/fhir+ndjson',
    mode: 'text: upsert, the default, or ifNoneMatch',
    manifest: 'text: Address of a manifest, in place of `input`',
    input: 'part*: A file',
    'input.type': 'text!: The type of its resources',
    'input.url': 'text!: Binary/id, or an address',
    // https://github.com/smart-on-fhir/bulk-import/blob/master/import.md
    inputSource: 'text: Accepted, not used',
    storageDetail: 'part: How the files are stored',
    'storageDetail.type': 'text: https',
    'storageDetail.contentEncoding': 'text*: Accepted, not used: a file shows how it is compressed',
  },
  text: {
    summary: 'Import in bulk',
    description:
      'NDJSON from Binaries, addresses or a manifest. Returns 202; `Content-Location` gives the address of the status.',
    example: {
      resourceType: 'Parameters',
      parameter: [
        {
          name: 'input',
          part: [
            { name: 'type', valueCode: 'Patient' },
            { name: 'url', valueUrl: 'Binary/an-id' },
          ],
        },
      ],
    },
    answer: 'OperationOutcome',
    status: 202,
  },
  async run(call) {
    const { services, principal, request } = call
    const { membershipId, scope, patient, profile, clientId, project } = principal
    if (membershipId === undefined) throw forbidden()
    // Lines keep their ids, which the Project must allow.
    if (!principal.isProjectAdmin && !project.updateAsCreate) {
      throw forbiddenBecause(undefined, 'import keeps ids')
    }
    const inputs = readKnownInputs(call)
    const id = randomUUID()
    const mode = readMode(inputs)
    const files = await readInputFiles(call, inputs)
    const job: NewImport = {
      id,
      project: project.number,
      request: absoluteUrl(services, request.path),
      caller: { membershipId, scope, patient, profile, clientId },
      mode,
      inOrder: project.checkReferencesOnWrite,
      inputs: files,
    }
    const types = [...new Set(files.map(({ type }) => type ?? 'manifest'))].join()
    const details = { mode, inputs: files.length, types }
    await services.repository.transaction(async (transaction) => {
      const add = (connection: Connection) => addImport(connection, job, MOST_UNDER_WAY)
      if (!(await transaction.withConnection(add))) throw tooManyRequests(RETRY_SECONDS)
      const record = { reference: `AsyncJob/${id}`, step: 'kick-off', details } as const
      await recordBulk({ repository: transaction }, principal, record)
    })
    await wakeWorkers(services.bus, 'import')
    const url = importUrl(services, id)
    return outcomeReply(202, accepted(url), {
      'Content-Location': url,
      'Cache-Control': 'no-store',
      'Retry-After': '1',
    })
  },
}

function readMode(inputs: Inputs): ImportMode {
  const format = inputs.text('inputFormat')?.replace(' ', '+')
  if (format !== undefined && !FORMATS.has(format)) {
    throw badRequest('"inputFormat" must be application/fhir+ndjson', 'inputFormat')
  }
  const [storage] = inputs.parts('storageDetail')
  if ((storage?.text('type') ?? 'https') !== 'https') {
    throw badRequest('"storageDetail.type" must be https', 'storageDetail.type')
  }
  const mode = inputs.text('mode') ?? 'upsert'
  if (mode === 'upsert' || mode === 'ifNoneMatch') return mode
  throw badRequest('"mode" must be upsert or ifNoneMatch', 'mode')
}

async function readInputFiles(
  { services, principal }: OperationCall,
  inputs: Inputs,
): Promise<readonly ImportInput[]> {
  const parts = inputs.parts('input')
  const manifest = inputs.text('manifest')
  if ((manifest === undefined) === (parts.length === 0)) {
    throw badRequest('An import needs either "input" or "manifest"', 'input')
  }
  if (manifest !== undefined) {
    return [{ type: null, url: readOutside(services, principal, manifest, 'manifest') }]
  }
  if (parts.length > MOST_INPUTS) {
    throw badRequest(`An import may have ${MOST_INPUTS} inputs`, 'input')
  }
  const files: ImportInput[] = []
  for (const [index, part] of parts.entries()) {
    const place = `input[${index}]`
    const type = readType(principal, needed(part, 'type', place), `${place}.type`)
    const url = await readUrl(services, principal, needed(part, 'url', place), `${place}.url`)
    files.push({ type, url })
  }
  return files
}

function needed(part: Inputs, name: string, place: string): string {
  const text = part.text(name)
  if (text === undefined) throw badRequest(`Missing required parameter "${name}"`, place)
  return text
}

/** Errors: 400 for types that cannot be imported, 403 for types the caller may not write. */
function readType(principal: Principal, type: string, place: string): string {
  if (!isImportable(type)) {
    throw badRequest(`Resources of type ${type.slice(0, 64)} cannot be imported`, place)
  }
  if (!may(principal, type, 'create') || !may(principal, type, 'update')) throw forbidden()
  return type
}

async function readUrl(
  services: Services,
  principal: Principal,
  text: string,
  place: string,
): Promise<string> {
  const path = toBinaryPath(
    services.config.baseUrl,
    fhirBases(services, principal.project.id),
    text,
  )
  const [, id] = /^Binary\/([^/]+)$/.exec(path) ?? []
  if (id === undefined) return readOutside(services, principal, text, place)
  try {
    await services.repository.read(principal, 'Binary', id)
  } catch (error) {
    throw isAbsent(error)
      ? badRequest('There is no such Binary', place)
      : withExpression(error, place)
  }
  return path
}

function readOutside(
  { config }: Services,
  { declared }: Principal,
  text: string,
  place: string,
): string {
  // The import runs later, and follows redirects and links that are unknown now.
  if (declared?.hosts !== undefined) {
    throw forbiddenByPlatform('A Bot that names its hosts can import Binaries only', place)
  }
  const url = text.length <= LONGEST_URL ? importAddress(config, text) : undefined
  if (url === undefined) throw badRequest('The input must be an https address or a Binary', place)
  if (url.username !== '' || url.password !== '') {
    throw badRequest('An address may hold no password', place)
  }
  return url.href
}

type Rules = Pick<Config, 'hookTargets'>

/** Where only public addresses are allowed, https is required. */
export function takesHttp({ hookTargets }: Rules): boolean {
  return hookTargets.reach !== 'public'
}

/** Returns undefined for an invalid URL; `base` resolves a relative one. */
export function importAddress(rules: Rules, text: string, base?: string): URL | undefined {
  const url = URL.canParse(text, base) ? new URL(text, base) : undefined
  const isKnown = url?.protocol === 'https:' || (url?.protocol === 'http:' && takesHttp(rules))
  return isKnown ? url : undefined
}
