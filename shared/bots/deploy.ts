/** `Bot/:id/$deploy`: code → Binary → `executableCode`, in one transaction. */
import { systemPrincipal } from '../access/principal.ts'
import { contentOf, readWhole } from '../binary/content.ts'
import { allOk, badRequest, issue, notFound } from '../errors.ts'
import { parseBody } from '../fhir/json.ts'
import { isObject, type Resource } from '../fhir/resource.ts'
import type { Operation, OperationCall } from '../request/operation.ts'
import { outcomeReply } from '../request/reply.ts'
import type { Repository } from '../store/repository.ts'
import { platformMeta } from '../store/rows/version.ts'
import { codeLocation, MAX_CODE_BYTES } from './bot.ts'
import { checkCode } from './code.ts'
import { toJavaScript } from './typescript.ts'

const JAVASCRIPT = 'text/javascript'

export const deploy: Operation = {
  name: 'deploy',
  on: [{ type: 'Bot', level: 'instance' }],
  methods: ['POST'],
  async run(call) {
    const { services, principal, id = '' } = call
    const { repository } = services
    const current = await repository.read(principal, 'Bot', id)
    if (current.content === undefined) throw notFound()
    // A stored version is a resource.
    const bot = JSON.parse(current.content) as Resource
    const project = await services.principals.project(platformMeta(current).project ?? '')
    if (!project?.features.includes('bots')) throw badRequest('Bots not enabled')
    const given = readBody(call)
    if (given.code === undefined) {
      const code = await currentCode(call, repository, bot)
      return deployed(checkCode(code, titleOf(bot) ?? 'index.js'))
    }
    if (Buffer.byteLength(given.code) > MAX_CODE_BYTES) throw badRequest('Bot code too large')
    const { filename } = given
    const code = toJavaScript(given.code, filename)
    const warnings = checkCode(code, filename)
    // A caller who may update the Bot may deploy: its policy need not mention Binary.
    const writer = { ...systemPrincipal(project), profile: principal.profile }
    await repository.transaction(async (inside) => {
      const binary = await inside.create(writer, {
        resourceType: 'Binary',
        contentType: JAVASCRIPT,
        securityContext: { reference: `Bot/${id}` },
        data: Buffer.from(code).toString('base64'),
      })
      await inside.patch(principal, { type: 'Bot', id }, (latest) => ({
        ...latest,
        executableCode: { contentType: JAVASCRIPT, url: `Binary/${binary.id}`, title: filename },
      }))
    })
    return deployed(warnings)
  },
}

/** Warnings come behind `All OK`, since clients show the first issue. */
function deployed(warnings: readonly string[]) {
  const issues = warnings.map((text) => issue('warning', 'not-supported', text))
  return outcomeReply(200, { ...allOk, issue: [...allOk.issue, ...issues] })
}

interface Deployment {
  readonly code: string | undefined
  readonly filename: string
}

/** JSON `{code, filename}` or Parameters with the same names. */
function readBody({ request }: OperationCall): Deployment {
  const isEmpty = request.body === undefined || request.body.length === 0
  const body = isEmpty ? {} : parseBody(request.body ?? '')
  if (!isObject(body)) throw badRequest('Expected an object with "code" and "filename"')
  const fields = body.resourceType === 'Parameters' ? fromParameters(body) : body
  const { code, filename } = fields
  if (code !== undefined && typeof code !== 'string') throw badRequest('"code" must be a string')
  if (filename !== undefined && typeof filename !== 'string') {
    throw badRequest('"filename" must be a string')
  }
  return { code: code === '' ? undefined : code, filename: baseName(filename) }
}

function fromParameters(body: Record<string, unknown>): Record<string, unknown> {
  const parameters = Array.isArray(body.parameter) ? body.parameter.filter(isObject) : []
  return Object.fromEntries(
    parameters.map(({ name, valueString }) => [String(name), valueString] as const),
  )
}

function baseName(filename: string | undefined): string {
  const name = (filename ?? '').split(/[\\/]/).at(-1)?.trim().slice(0, 200) ?? ''
  return name === '' ? 'index.js' : name
}

async function currentCode(
  { services, principal }: OperationCall,
  repository: Repository,
  bot: Resource,
): Promise<string> {
  const location = codeLocation(bot, services.config.baseUrl)
  if (location === undefined) throw badRequest('Bot missing executable code')
  if (location === null) throw badRequest('Executable code is not a Binary')
  if (location === 'inline') return String(bot.code)
  const content = contentOf(await repository.read(principal, 'Binary', location.binary))
  return (await readWhole(services, content, MAX_CODE_BYTES)).toString()
}

function titleOf(bot: Resource): string | undefined {
  const title = isObject(bot.executableCode) ? bot.executableCode.title : undefined
  return typeof title === 'string' ? title : undefined
}
