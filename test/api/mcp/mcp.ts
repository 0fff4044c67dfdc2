/** A client of the Model Context Protocol, by its official library, and bots that are tools. */
import { Client, StreamableHTTPClientTransport } from '@modelcontextprotocol/client'
import type { Test } from 'tap'

export interface Called {
  readonly text: string
  readonly isError: boolean
  readonly runId: string | undefined
}

interface Model {
  readonly client: Client
  names(): Promise<readonly string[]>
  call(name: string, args?: Record<string, unknown>): Promise<Called>
}

export async function openModel(
  t: Pick<Test, 'teardown'>,
  baseUrl: string,
  token: string | undefined,
  mode: 'legacy' | 'auto' = 'auto',
): Promise<Model> {
  const client = new Client({ name: 'test', version: '1.0.0' }, { versionNegotiation: { mode } })
  const authProvider = { token: async () => token }
  await client.connect(new StreamableHTTPClientTransport(new URL('mcp', baseUrl), { authProvider }))
  t.teardown(() => client.close())
  return {
    client,
    names: async () => {
      const { tools } = await client.listTools(undefined, { cacheMode: 'bypass' })
      return tools.map(({ name }) => name)
    },
    async call(name, args = {}) {
      const { content, isError = false, _meta } = await client.callTool({ name, arguments: args })
      const [first] = content
      return {
        text: first?.type === 'text' ? first.text : JSON.stringify(content),
        isError: isError === true,
        runId: _meta?.['botica/runId'] as string | undefined,
      }
    },
  }
}

export function aTool(name: string, inputSchema: object, description = `Runs ${name}`) {
  return {
    extension: [
      {
        url: 'urn:botica:bot-tool',
        extension: [
          { url: 'name', valueString: name },
          { url: 'description', valueString: description },
          { url: 'inputSchema', valueString: JSON.stringify(inputSchema) },
        ],
      },
    ],
  }
}
