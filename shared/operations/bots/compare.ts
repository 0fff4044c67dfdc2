/** `Bot/:id/$diff`: the lines in which two versions of a Bot's code differ. */
import { createTwoFilesPatch, FILE_HEADERS_ONLY } from 'diff'
import { codeLocation, MAX_CODE_BYTES } from '../../bots/bot.ts'
import { type BotHistory, codeUrl, readHistory } from '../../bots/versions.ts'
import { badRequest, tooCostly } from '../../core/errors.ts'
import { type Code, codeAt, type LabelledCode, LIVE } from '../../fhir/bot-labels.ts'
import type { Resource } from '../../fhir/resource.ts'
import { readBinaryContent, readWhole } from '../../request/binary/content.ts'
import { parametersReply, readInputs } from '../../request/parameters.ts'
import type { Operation, OperationCall } from '../../request/request.ts'
import { parseVersion } from '../../store/rows/rows.ts'

const STAGING = 'staging'
/** The comparison blocks the process. */
const LONGEST_MS = 200
/** Lines added and removed that the comparison looks for. */
const MOST_CHANGES = 10_000
const MAX_CHARACTERS = 1024 * 1024

/** Compares sources, otherwise the code that runs. Errors: 400, 403 and 404 as for the history and the Binaries. */
export const diff: Operation = {
  name: 'diff',
  on: [{ type: 'Bot', level: 'instance' }],
  methods: ['GET', 'POST'],
  inputs: {
    from: 'text: A label or a version; default: live',
    to: 'text: A label or a version; default: staging',
  },
  text: {
    summary: 'Compare two versions of the code of a bot',
    description: 'A unified diff of the sources, or of the code that runs if one has no source.',
    answer: 'Parameters',
  },
  onlyReads: true,
  async run(call) {
    const { services, principal, id = '' } = call
    const inputs = readInputs(call)
    const [history, bot] = await Promise.all([
      readHistory(services, principal, id),
      services.repository.read(principal, 'Bot', id).then(parseVersion),
    ])
    const from = findCode(bot, history, inputs.text('from') ?? LIVE, 'from')
    const to = findCode(bot, history, inputs.text('to') ?? STAGING, 'to')
    const [before, after] = await readTexts(call, from, to)
    const [title, newTitle] = [from, to].map(({ code }) => String(code.title ?? 'index.js'))
    const text = createTwoFilesPatch(
      title ?? '',
      newTitle ?? '',
      before,
      after,
      from.version,
      to.version,
      { timeout: LONGEST_MS, maxEditLength: MOST_CHANGES, headerOptions: FILE_HEADERS_ONLY },
    )
    if (text === undefined || text.length > MAX_CHARACTERS) {
      throw tooCostly('The versions differ in too many lines to compare them')
    }
    return parametersReply([
      ['from', 'valueString', from.version],
      ['to', 'valueString', to.version],
      ['diff', 'valueString', before === after ? undefined : text],
    ])
  },
}

interface Compared extends LabelledCode {
  /** The label or version that was asked for, and the version of a label in brackets. */
  readonly version: string
}

function findCode(bot: Resource, { versions }: BotHistory, name: string, input: string): Compared {
  const labelled = codeAt(bot, name)
  const found = versions.find((one) =>
    labelled === undefined ? one.name === name : codeUrl(one.code) === codeUrl(labelled.code),
  )
  if (labelled !== undefined) {
    return { ...labelled, version: found === undefined ? name : `${name} (${found.name})` }
  }
  if (found !== undefined) return { ...found, version: name }
  throw badRequest(`The bot has no label and no version "${name.slice(0, 64)}"`, input)
}

async function readTexts(
  call: OperationCall,
  from: LabelledCode,
  to: LabelledCode,
): Promise<readonly [string, string]> {
  const [before, after] =
    from.source === undefined || to.source === undefined
      ? [from.code, to.code]
      : [from.source, to.source]
  return await Promise.all([readText(call, before), readText(call, after)])
}

async function readText({ services, principal }: OperationCall, code: Code): Promise<string> {
  const { config, repository } = services
  const location = codeLocation({ resourceType: 'Bot', executableCode: code }, config.baseUrl)
  if (!location || location === 'inline') throw badRequest('The code is not a Binary')
  const content = readBinaryContent(await repository.read(principal, 'Binary', location.binary))
  return (await readWhole(services, content, MAX_CODE_BYTES)).toString()
}
