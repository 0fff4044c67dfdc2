/** A Project of the running service for one bench, and a client in it. */
import { connect } from '../session.ts'
import type { Stage } from './stage.ts'

export async function openProject(
  { env }: Stage,
  baseUrl: string,
): Promise<{ readonly token: string; readonly projectId: string }> {
  const { SUPER_ADMIN_CLIENT_ID, SUPER_ADMIN_CLIENT_SECRET } = env
  Object.assign(process.env, {
    BASE_URL: baseUrl,
    SUPER_ADMIN_CLIENT_ID,
    SUPER_ADMIN_CLIENT_SECRET,
  })
  const admin = await connect()
  const project = await admin.post('admin/Project/', { resourceType: 'Project', name: 'Bench' })
  const projectId = String(project.id)
  const client = await admin.post(`admin/projects/${projectId}/client`, { name: 'Caller' })
  const { token } = await connect({ id: String(client.id), secret: String(client.secret) })
  return { token, projectId }
}
