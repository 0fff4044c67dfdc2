/** Bots of a project of a bench, without caps of their own, and a client that runs them. */
import { connect } from '../session.ts'

export interface Deployed<Name extends string> {
  readonly token: string
  readonly projectId: string
  readonly ids: Readonly<Record<Name, string>>
}

const NO_CAP = 100_000

/** Signs in with the first-start credentials of the stage. `code` is that of each bot by its name. */
export async function deployBots<Name extends string>(
  env: NodeJS.ProcessEnv,
  code: Readonly<Record<Name, string>>,
): Promise<Deployed<Name>> {
  const { BASE_URL: baseUrl, SUPER_ADMIN_CLIENT_ID, SUPER_ADMIN_CLIENT_SECRET } = env
  Object.assign(process.env, {
    BASE_URL: baseUrl,
    SUPER_ADMIN_CLIENT_ID,
    SUPER_ADMIN_CLIENT_SECRET,
  })
  const admin = await connect()
  const project = await admin.post('admin/Project/', {
    resourceType: 'Project',
    name: 'Bench',
    systemSetting: [{ name: 'botConcurrency', valueInteger: NO_CAP }],
  })
  const home = `admin/projects/${project.id}`
  const client = await admin.post(`${home}/client`, { name: 'Caller' })
  const { token } = await connect({ id: String(client.id), secret: String(client.secret) })
  const ids: Partial<Record<Name, string>> = {}
  for (const name of Object.keys(code) as Name[]) {
    const bot = await admin.post(`${home}/bot`, { name })
    const url = `${baseUrl}fhir/StructureDefinition/bot-maxConcurrency`
    const changed = {
      ...bot,
      auditEventTrigger: 'on-error',
      extension: [{ url, valueInteger: NO_CAP }],
    }
    const json = 'application/fhir+json'
    await admin.send('PUT', `fhir/R4/Bot/${bot.id}`, JSON.stringify(changed), json)
    await admin.post(`fhir/R4/Bot/${bot.id}/$deploy`, { code: code[name] })
    ids[name] = String(bot.id)
  }
  // Each name has been given its id above.
  return { token, projectId: String(project.id), ids: ids as Record<Name, string> }
}
